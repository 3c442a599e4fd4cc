"""Files that say for which model their state was made: tuned states and full states."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rnn_engine.errors import StateError
from rnn_engine_states.files.exchange import ExportForm, StateFiles
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import FrozenState
from tests.support.models import tiny_shape
from tests.support.toy_states import same

SHAPE = tiny_shape(layers=3, width=8, head_size=4, ffn=8, vocab=10)
KEY = uuid.UUID(int=7)
FILES = StateFiles(SHAPE, "a" * 32)
OTHERS = StateFiles(SHAPE, "b" * 32)


def some_state(*, shifts: bool, files: StateFiles = FILES) -> FrozenState:
    generator = np.random.default_rng(1)
    state = files.shape.initial_state()
    for values in state.values():
        if shifts or values.ndim > 2:
            values[...] = generator.standard_normal(values.shape)
    return files.freeze(LoadedState("full", state), "test")


def write(path: Path, form: ExportForm, frozen: FrozenState, files: StateFiles = FILES) -> Path:
    path.write_bytes(b"".join(files.export(form, "mine", KEY, frozen)))
    return path


@pytest.mark.parametrize(("form", "found"), [("pth", "tuned"), ("tuned", "tuned"), ("full", "full")])
@pytest.mark.parametrize("shifts", [True, False])
def test_each_form_comes_back(tmp_path: Path, form: ExportForm, found: str, shifts: bool) -> None:
    state = some_state(shifts=shifts)
    loaded = FILES.read(write(tmp_path / "state", form, state))
    assert loaded.form == found
    if form == "full":
        assert same(loaded.state, state.state)
    else:
        assert np.array_equal(loaded.state["wkv"], state.state["wkv"])
        assert not loaded.state["att_shift"].any()


@pytest.mark.parametrize("form", ["tuned", "full"])
def test_a_state_of_another_model_is_refused_unless_any_is_allowed(tmp_path: Path, form: ExportForm) -> None:
    state = some_state(shifts=False)
    path = write(tmp_path / "state", form, state)
    with pytest.raises(StateError, match=r"state: the state belongs to model .*; the loaded model is .*any_model"):
        OTHERS.read(path)
    assert same(OTHERS.read(path, any_model=True).state, state.state)
    assert same(StateFiles(SHAPE, "b" * 32, any_model=True).read(path).state, state.state)


def test_a_tuned_state_without_a_model_is_taken(tmp_path: Path) -> None:
    save_file({f"blocks.{n}.att.time_state": np.ones((2, 4, 4), np.float32) for n in range(3)}, tmp_path / "a.st")
    assert FILES.read(tmp_path / "a.st").form == "tuned"
