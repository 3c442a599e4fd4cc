"""The demo model on the processor, opened once for all tests that only call it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rnn_engine import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", num_slots=4) as opened:
        yield opened
