from __future__ import annotations

import pytest


@pytest.fixture
def divided_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps of a few tokens run as two pieces on the processor, as long ones do."""
    monkeypatch.setattr("rnn_engine.forward.cpu_graph._DIVIDED_TOKENS", 4)
