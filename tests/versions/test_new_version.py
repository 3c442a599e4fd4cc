"""A version is a package and a row in the table: a made-up one runs from its file to its read-out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.cli.options import describe_shape
from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.model import ModelFile
from rnn_engine.operations.embedding import EmbeddingSettings, part_vector
from rnn_engine.types import TokenRun, run_step
from rnn_engine.versions.table import VERSIONS, VersionTable
from rnn_engine_states.frozen import check_state
from tests.support.reference import forward
from tests.support.toy_version import TOY, TOY_SHAPE, save_toy

TABLE = VersionTable((TOY, *VERSIONS.rows))
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelFile]:
    with open_model(save_toy(tmp_path / "toy.safetensors"), versions=TABLE) as opened:
        yield opened


def test_its_file_is_recognised_and_checked(model: ModelFile) -> None:
    assert model.shape == TOY_SHAPE
    assert describe_shape(model.shape) == "RWKV toy, layers 2, width 16, vocab size 12"


def test_its_file_is_refused_without_the_row(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no RWKV version has these tensors; .* found answers\.matrix"):
        open_model(save_toy(tmp_path / "toy.safetensors"))


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_it_runs_on_every_device(model: ModelFile, device: str) -> None:
    runner = load_runner(model, device, RunnerSize(2, max_rows=8), weights="f32", checked=True, versions=TABLE)
    logits, state = forward(model, TOKENS, dtype=np.float64, versions=TABLE)
    for part in (TOKENS[:3], TOKENS[3:]):
        readout = run_step(runner, [TokenRun(1, part, rows=len(part)), TokenRun(0, [7])])
    found = np.stack([readout.full_row(row) for row in range(5)])
    np.testing.assert_allclose(found, logits[3:], rtol=1e-4, atol=1e-4)
    after = check_state(runner.read_state(1), model.shape, "slot")
    np.testing.assert_allclose(after["shift"], state["shift"], rtol=1e-4, atol=1e-4)
    assert np.array_equal(after["memory"], np.full((2, 3), -2.0, np.float32))
    runner.close()


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_its_state_is_written_and_forked(model: ModelFile, device: str) -> None:
    runner = load_runner(model, device, RunnerSize(2), versions=TABLE)
    generator = np.random.default_rng(5)
    state = {name: generator.random(values.shape, np.float32) for name, values in TOY_SHAPE.initial_state().items()}
    runner.write_state(0, state)
    runner.copy_state(0, 1)
    for name, values in runner.read_state(1).items():
        assert np.array_equal(values, state[name])
    runner.close()


def test_its_state_is_embedded_by_its_own_fields() -> None:
    state = TOY_SHAPE.initial_state()
    assert part_vector(state, EmbeddingSettings(layer=0, part="memory"), TOY_SHAPE).tolist() == [np.float32(-2.0)] * 3
    settings = EmbeddingSettings(part="all")
    assert settings.size(TOY_SHAPE) == len(part_vector(state, settings, TOY_SHAPE)) == 3 + 16
    with pytest.raises(Exception, match=r"part: 'wkv' .* one of memory, shift, all"):
        replace(settings, part="wkv").check(TOY_SHAPE)
