"""The states that an engine begins with: a model file's own, the operator's, and those of earlier runs."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import StateFile, StateSettings
from rnn_engine.loading.states import open_states
from rnn_engine.types import F32
from rnn_engine_states.files.prefab import Prefab, encode_prefab
from rnn_engine_states.named.entry import Retention
from tests.support.models import Convention, TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.named_states import BlockingStates, save_tuned_state, some_state
from tests.support.pth import save_pth

SHAPE = tiny_shape()
WKV = some_state(3, SHAPE)["wkv"]  # [L, H, value, key]


@pytest.fixture(scope="module")
def model() -> TensorModel:
    return random_model(SHAPE, seed=5)


@pytest.fixture
def plain(model: TensorModel, tmp_path: Path) -> Path:
    path = tmp_path / "plain.safetensors"
    save_safetensors(model, path, "f32")
    return path


def opened(path: Path, **settings: object) -> BlockingStates:
    with open_model(path) as model:
        return BlockingStates(open_states(model, StateSettings(**settings)))  # type: ignore[arg-type]


def tuned(wkv: F32) -> dict[str, NDArray[Any]]:
    return {f"blocks.{layer}.att.time_state": array for layer, array in enumerate(wkv)}


def names(states: BlockingStates) -> list[str]:
    return [entry.name for entry in states.entries()]


@pytest.mark.parametrize("convention", ["blinkdl", "ai00"])
def test_a_models_own_state_is_the_default(model: TensorModel, tmp_path: Path, convention: Convention) -> None:
    path = tmp_path / "tuned.safetensors"
    save_safetensors(TensorModel(SHAPE, model.tensors | tuned(WKV)), path, "f32", convention)
    states = opened(path)
    assert states.default == states.get("model")
    assert np.array_equal(states.get("model").frozen.state["wkv"], WKV)
    assert opened(path, default="none").default is None


def test_the_operators_files_come_under_their_names(plain: Path, tmp_path: Path) -> None:
    save_tuned_state(tmp_path / "a.safetensors", some_state(1, SHAPE), SHAPE)
    save_pth(TensorModel(SHAPE, tuned(WKV)), tmp_path / "b.pth")
    (tmp_path / "c.cbor").write_bytes(encode_prefab(Prefab("its own", uuid.uuid4(), True, some_state(2, SHAPE)), SHAPE))
    named = {"a.safetensors": "first", "b.pth": None, "c.cbor": None}
    files = [StateFile(tmp_path / path, name) for path, name in named.items()]
    states = opened(plain, files=files)
    assert names(states) == ["first", "b", "its own"]
    assert np.array_equal(states.get("b").frozen.state["wkv"], WKV)
    assert states.default == states.get("its own")
    assert opened(plain, files=files, default="first").default is not None
    assert opened(plain).default is None


def test_requests_read_files_from_a_folder_of_their_own(plain: Path, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    save_tuned_state(files / "poet.st", some_state(1, SHAPE), SHAPE)
    for settings in ({"folder": tmp_path / "kept", "file_folder": files}, {"folder": files}, {"file_folder": files}):
        assert opened(plain, **settings).files.read_requested("poet.st").form == "tuned"
    with pytest.raises(NotFoundError, match="no state file"):
        opened(plain, folder=tmp_path / "other").files.read_requested("poet.st")


def test_persistent_states_come_back_and_files_go_before_them(plain: Path, tmp_path: Path) -> None:
    save_tuned_state(tmp_path / "a.safetensors", some_state(1, SHAPE), SHAPE)
    folder = tmp_path / "states"
    states = opened(plain, folder=folder)
    file = StateFile(tmp_path / "a.safetensors", "mine")
    states.add_file(file.path, "brought")
    for name in ("mine", "kept"):
        states.put(name, states.get("brought").frozen, Retention(persistent=True), source="test")
    again = opened(plain, folder=folder, files=[file], default="kept")
    assert names(again) == ["mine", "kept"]
    assert (again.get("mine").form, again.default) == ("tuned", again.get("kept"))


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"files": [StateFile(Path("no.st"), "a")]}, StateError, r"no\.st can't be read: No such file"),
        ({"default": "poet"}, NotFoundError, "state 'poet' does not exist; there are: none"),
        ({"folder": Path(__file__)}, StateError, "the folder of states, .* can't be made: File exists"),
    ],
)
def test_what_can_not_be_begun_with_is_told(
    plain: Path, settings: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        opened(plain, **settings)


def test_a_name_is_given_once(plain: Path, tmp_path: Path) -> None:
    save_tuned_state(tmp_path / "a.st", some_state(1, SHAPE), SHAPE)
    with pytest.raises(InvalidRequestError, match="state name: 'a' is not allowed; expected a name that is free"):
        opened(plain, files=[StateFile(tmp_path / "a.st")] * 2)


def test_a_pth_without_states_is_refused(plain: Path, model: TensorModel, tmp_path: Path) -> None:
    save_pth(model, tmp_path / "other.pth")
    with pytest.raises(StateError, match=r"other\.pth: holds no blocks\.N\.att\.time_state tensors"):
        opened(plain, files=[StateFile(tmp_path / "other.pth")])
