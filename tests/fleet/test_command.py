"""`rnn-engine fleet` as a process, on a Ray cluster that it starts itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.support.processes import serving_process


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'rnn-engine[fleet]'")
def test_it_serves_with_a_replica_and_ends_at_a_signal(tiny_model: Path) -> None:
    arguments = ("--device", "cpu", "--port", 0, "--slots", 3, "--replicas", 1, "--replica-cpus", 0.1)
    asked = {"prompt": [1, 7, 9], "max_tokens": 5, "return_token_ids": True}
    with serving_process("fleet", tiny_model, *arguments) as serving:
        assert "3 slots" in serving.said
        answer = httpx.post(f"{serving.address}/v1/completions", json=asked, timeout=60).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 5
