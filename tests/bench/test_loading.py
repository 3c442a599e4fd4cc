"""The random models that loads are measured with have the sizes and the types of real ones, and finite logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rnn_engine.loading.runner import load_runner, open_model
from rnn_engine.types import TokenRun, run_step
from tests.support.models import tiny_shape
from tools.bench import loading


@pytest.mark.parametrize("name", ["m-q4_0.gguf", "m-q8_0.gguf", "m-f16.safetensors", "m-f16.pth"])
def test_a_random_model_is_written_and_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tiny_shape(head_size=64)
    monkeypatch.setattr("tools.bench.loading.SHAPES", {"m": shape})
    monkeypatch.setattr(loading, "_POOL", 1 << 14)
    path = tmp_path / name
    loading.write_random_model(path)
    with open_model(path) as opened:
        assert opened.shape == shape
        assert opened.block_type("head.weight") == (None if "f16" in name else name[2:6].upper())
        readout = run_step(load_runner(opened, "cpu"), [TokenRun(0, [1, 2, 3], rows=1)])
    assert np.isfinite(readout.full_row(0)).all()
    assert readout.full_row(0).std() > 0.1
