"""Initial states under names, and paths that may not leave their folder."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError
from states.files.confine import confined_path
from states.files.prefab import Prefab, encode_prefab
from states.files.reading import LoadedState, save_tuned_state
from states.initial import NO_INITIAL_STATE, InitialStates, root_of
from tests.support.models import tiny_shape
from tests.support.toy_states import same

SHAPE = tiny_shape(layers=2, width=8, head_size=4, ffn=8, vocab=10)


def some_state(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(array.shape).astype(np.float32) for name, array in SHAPE.initial_state().items()
    }


def read_pth(path: Path) -> Mapping[str, NDArray[Any]]:
    assert path.read_bytes().startswith(b"PK")
    return {f"blocks.{n}.att.time_state": np.full((2, 4, 4), n, np.float32) for n in range(2)}


def registry(folder: Path | None = None) -> InitialStates:
    return InitialStates(SHAPE, "model", read_pth, folder)


def add(states: InitialStates, name: str, seed: int = 0, *, default: bool = False) -> None:
    states.add(LoadedState("inline", some_state(seed)), name, "test", default=default)


def test_a_state_is_added_listed_described_and_removed(tmp_path: Path) -> None:
    save_tuned_state(tmp_path / "poet.st", some_state(), SHAPE)
    states = registry()
    added = states.add_file(tmp_path / "poet.st")
    assert (added.name, added.form, added.source, added.has_shifts) == ("poet", "tuned", "poet.st", False)
    assert states.entries() == (added,)
    assert states.get("poet") is states.get(str(added.id)) is states.get(str(added.id).upper()) is added
    assert states.remove("poet") is added
    assert states.entries() == ()
    assert np.array_equal(added.state["wkv"], some_state()["wkv"])  # those who hold it go on


def test_an_unknown_name_is_an_error_that_tells_the_known_ones() -> None:
    states = registry()
    with pytest.raises(NotFoundError, match="'poet' does not exist; there are: none"):
        states.get("poet")
    add(states, "b")
    add(states, "a")
    for ask in (states.get, states.remove):
        with pytest.raises(NotFoundError, match="'poet' does not exist; there are: a, b"):
            ask("poet")


def test_the_default_is_the_latest_that_was_added_as_such() -> None:
    states, names = registry(), []
    for name, default in (("a", False), ("b", True), ("c", True), ("d", False)):
        add(states, name, default=default)
        names.append(states.default.name if states.default else None)
    states.remove("b")
    names.append(states.default.name if states.default else None)
    states.remove("c")
    names.append(states.default.name if states.default else None)
    assert names == [None, "b", "c", "c", "c", None]


def test_names_and_ids_are_used_once(tmp_path: Path) -> None:
    states = registry()
    add(states, "a")
    with pytest.raises(
        InvalidRequestError, match=r"state\.name: 'a' is not allowed; expected a name and an id that are"
    ):
        add(states, "a", seed=1)
    key = uuid.UUID(int=9)
    states.add(LoadedState("prefab", some_state(), id=key), "b", "test")
    with pytest.raises(InvalidRequestError, match="'b'"):
        states.add(LoadedState("prefab", some_state(1), id=key), "c", "test")
    states.remove("a")
    add(states, "a", seed=1)


@pytest.mark.parametrize("name", ["", NO_INITIAL_STATE])
def test_some_names_are_reserved(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"state\.name: .* expected a name"):
        add(registry(), name)


def test_the_root_follows_the_values_and_not_the_name() -> None:
    states = registry()
    add(states, "a")
    add(states, "same", seed=0)
    add(states, "other", seed=1)
    roots = [root_of(states.get(name)) for name in ("a", "same", "other")]
    assert roots[0] == roots[1] != roots[2]
    assert root_of(None) == NO_INITIAL_STATE
    states.remove("a")
    add(states, "a", seed=2)
    assert root_of(states.get("a")) not in roots


def test_a_state_is_a_copy_that_nobody_can_write_to() -> None:
    states, mine = registry(), some_state()
    added = states.add(LoadedState("inline", mine), "a", "request")
    mine["wkv"][:] = 0
    assert same(added.state, some_state())
    with pytest.raises(ValueError, match="read-only"):
        added.state["wkv"][:] = 0


def test_uploads_of_every_form_are_taken(tmp_path: Path) -> None:
    states = registry()
    save_tuned_state(tmp_path / "tuned", some_state(), SHAPE)
    tuned = states.add_upload((tmp_path / "tuned").read_bytes(), "tuned")
    prefab = Prefab("its own name", uuid.UUID(int=5), True, some_state(1))
    full = states.add_upload(encode_prefab(prefab, SHAPE), "prefab")
    pth = states.add_upload(b"PK\x03\x04", "pth")
    assert [state.form for state in states.entries()] == ["tuned", "prefab", "tuned"]
    assert (full.id, full.has_shifts, states.default) == (prefab.id, True, full)
    assert np.array_equal(tuned.state["wkv"], some_state()["wkv"])
    assert pth.state["wkv"][1, 0, 0, 0] == 1
    with pytest.raises(StateError, match="upload: is neither"):
        states.add_upload(b"rubbish", "bad")
    assert len(states.entries()) == 3


def test_a_request_reads_from_the_configured_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    save_tuned_state(folder / "poet.st", some_state(), SHAPE)
    states = registry(folder)
    assert states.add_requested("poet.st", "p").source == "poet.st"
    with pytest.raises(NotFoundError, match=r"state.path: no state file 'absent.st'"):
        states.add_requested("absent.st")
    with pytest.raises(InvalidRequestError, match="no folder of state files is configured"):
        registry().add_requested("poet.st")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "inside-too").mkdir()
    for path in ("secret", "inside/a", "inside/sub/b", "inside-too/c"):
        (tmp_path / path).write_text(path)
    (inside / "link-out").symlink_to(tmp_path / "secret")
    (inside / "folder-out").symlink_to(tmp_path)
    (inside / "link-to-namesake").symlink_to(tmp_path / "inside-too" / "c")
    (inside / "link-in").symlink_to(inside / "a")
    (inside / "loop").symlink_to(inside / "loop")
    return inside


@pytest.mark.parametrize("requested", ["a", "sub/b", "./a", "link-in", "sub//b"])
def test_a_path_inside_is_found(folder: Path, requested: str) -> None:
    path = confined_path(folder, requested, "path")
    assert path.is_relative_to(folder.resolve())
    assert path.is_file()


@pytest.mark.parametrize(
    "requested",
    [
        "", "/etc/passwd", "../secret", "sub/../../secret", "sub/../a", "..", "..\\secret", "C:\\secret", "C:secret",
        "\\\\host\\share", "\\secret", "link-out", "folder-out/secret", "loop", "link-to-namesake",
        "../inside-too/c", "a\0",
    ],
)  # fmt: skip
def test_a_path_that_leaves_the_folder_is_refused(folder: Path, requested: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"path: .* expected a relative path inside the folder of state files"
    ):
        confined_path(folder, requested, "path")


@pytest.mark.parametrize("requested", ["absent", "sub", ".", "a/b"])
def test_a_path_that_is_no_file_is_not_found(folder: Path, requested: str) -> None:
    with pytest.raises(NotFoundError, match="path: no state file"):
        confined_path(folder, requested, "path")
