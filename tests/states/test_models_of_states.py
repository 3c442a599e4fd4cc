"""Files that say for which model their state was made: rwkv-metal's, tuned states and full states."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rnn_engine.errors import StateError
from rnn_engine.model.fingerprint import metal_fingerprint
from rnn_engine.types import ModelShape
from rnn_engine_states.files.exchange import ExportForm, StateFiles
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import FrozenState
from tests.support.models import random_model, tiny_shape
from tests.support.older_models import tiny_v6
from tests.support.toy_states import same

SHAPE = tiny_shape(layers=3, width=8, head_size=4, ffn=8, vocab=10)
KEY = uuid.UUID(int=7)
BASE = "718d9945aedcac220c1b7a0306d6ad8bc437733d6a27c7068133ac7e93372c85"
FILES = StateFiles(SHAPE, "a" * 32, base=BASE)
OTHERS = StateFiles(SHAPE, "b" * 32, base="c" * 64)


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


def metal_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "numpy") as file:
        metadata: dict[str, str] = file.metadata()
    return metadata


def test_the_fingerprint_is_that_of_rwkv_metal() -> None:
    """Its own code computed this one from the same tensors."""
    assert metal_fingerprint(random_model(SHAPE, seed=5, bits=11)) == BASE
    assert metal_fingerprint(random_model(SHAPE, seed=6, bits=11)) != BASE
    assert metal_fingerprint(random_model(tiny_v6(), seed=5)) is None


def test_rwkv_metals_file_has_its_tensors_and_metadata(tmp_path: Path) -> None:
    path, state = tmp_path / "a.state.safetensors", some_state(shifts=True)
    write(path, "metal", state)
    tensors = load_file(path)
    assert {name: values.shape for name, values in tensors.items()} == {
        "wkv": (3, 1, 2, 4, 4),
        "tmix_shift": (3, 1, 1, 8),
        "cmix_shift": (3, 1, 1, 8),
    }
    assert np.array_equal(tensors["wkv"][:, 0], state.state["wkv"])
    assert np.array_equal(tensors["tmix_shift"][:, 0, 0], state.state["att_shift"])
    assert np.array_equal(tensors["cmix_shift"][:, 0, 0], state.state["ffn_shift"])
    assert metal_metadata(path) == {
        "format": "rwkv-state",
        "version": "1",
        "kind": "tuned",
        "trained": "wkv,tmix_shift,cmix_shift",
        "base_fingerprint": BASE,
        "note": "rnn-engine",
        "n_layer": "3",
        "n_embd": "8",
        "n_head": "2",
        "head_size": "4",
    }
    write(path, "metal", some_state(shifts=False))
    assert metal_metadata(path)["trained"] == "wkv"


@pytest.mark.parametrize(
    ("form", "found"), [("metal", "metal"), ("pth", "tuned"), ("tuned", "tuned"), ("full", "full")]
)
@pytest.mark.parametrize("shifts", [True, False])
def test_each_form_comes_back(tmp_path: Path, form: ExportForm, found: str, shifts: bool) -> None:
    state = some_state(shifts=shifts)
    loaded = FILES.read(write(tmp_path / "state", form, state))
    assert loaded.form == found
    if form in ("metal", "full"):
        assert same(loaded.state, state.state)
    else:
        assert np.array_equal(loaded.state["wkv"], state.state["wkv"])
        assert not loaded.state["att_shift"].any()


@pytest.mark.parametrize("form", ["metal", "tuned", "full"])
def test_a_state_of_another_model_is_refused_unless_any_is_allowed(tmp_path: Path, form: ExportForm) -> None:
    state = some_state(shifts=False)
    path = write(tmp_path / "state", form, state)
    with pytest.raises(StateError, match=r"state: the state belongs to model .*; the loaded model is .*any_model"):
        OTHERS.read(path)
    assert same(OTHERS.read(path, any_model=True).state, state.state)
    assert same(StateFiles(SHAPE, "b" * 32, any_model=True).read(path).state, state.state)


def test_a_state_of_other_sizes_is_always_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "state", "metal", some_state(shifts=False))
    larger = StateFiles(tiny_shape(layers=3, width=16, head_size=4, ffn=8, vocab=10), "a" * 32, base=BASE)
    with pytest.raises(StateError, match="state: n_embd is '8'; this model has 16"):
        larger.read(path, any_model=True)


def test_a_model_without_a_fingerprint_takes_a_file_and_writes_none(tmp_path: Path) -> None:
    """Such as one in quantised blocks, whose state may have been tuned on the plain numbers."""
    path = write(tmp_path / "state", "metal", some_state(shifts=False))
    files = StateFiles(SHAPE, "b" * 32)
    assert files.read(path).form == "metal"
    with pytest.raises(StateError, match="rwkv-metal has no fingerprint of this RWKV v7; expected RWKV-7"):
        write(path, "metal", some_state(shifts=False), files)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "2"}, "format version '2' can't be read; expected '1'"),
        ({"n_layer": "4"}, "n_layer is '4'; this model has 3"),
        ({"head_size": "x" * 500}, "head_size is 'xxx"),
    ],
)
def test_wrong_metadata(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    path = write(tmp_path / "state", "metal", some_state(shifts=False))
    metadata = metal_metadata(path)
    save_file(load_file(path), path, {**metadata, **changes})
    with pytest.raises(StateError, match=words):
        FILES.read(path)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"wkv": None}, "state: has no tensor wkv; expected wkv, tmix_shift, cmix_shift"),
        ({"wkv": np.zeros((3, 2, 2, 4, 4), np.float32)}, r"wkv has shape \[3, 2, 2, 4, 4\]; this model needs"),
        ({"tmix_shift": np.full((3, 1, 1, 8), np.nan, np.float32)}, "tmix_shift holds 24 NaN or infinite values"),
    ],
)
def test_wrong_tensors(tmp_path: Path, tensors: dict[str, Any], words: str) -> None:
    path = write(tmp_path / "state", "metal", some_state(shifts=False))
    changed = {**load_file(path), **tensors}
    save_file({name: values for name, values in changed.items() if values is not None}, path, metal_metadata(path))
    with pytest.raises(StateError, match=words):
        FILES.read(path)


def test_a_tuned_state_without_a_model_is_taken(tmp_path: Path) -> None:
    save_file({f"blocks.{n}.att.time_state": np.ones((2, 4, 4), np.float32) for n in range(3)}, tmp_path / "a.st")
    assert FILES.read(tmp_path / "a.st").form == "tuned"


def test_a_version_with_another_state_has_no_such_file(tmp_path: Path) -> None:
    shape: ModelShape = tiny_v6()
    files = StateFiles(shape, "a" * 32)
    path = write(tmp_path / "state", "metal", some_state(shifts=False))
    with pytest.raises(StateError, match="this model has"):
        files.read(path)
