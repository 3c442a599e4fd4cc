"""States under names: from files and uploads, forked, taken, replaced and removed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError
from rnn_engine_states.files.prefab import Prefab, encode_prefab
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import NO_INITIAL_STATE, freeze_state
from rnn_engine_states.named.entry import Retention
from tests.support.models import TensorModel
from tests.support.named_states import (
    KEPT,
    PERSISTENT,
    SHAPE,
    STATE_BYTES,
    BlockingStates,
    advance,
    make_states,
    names,
    put,
    save_tuned_state,
    some_initial,
    some_state,
)
from tests.support.pth import save_pth
from tests.support.toy_states import same


def test_a_file_is_added_listed_and_found_and_its_copy_removed(tmp_path: Path) -> None:
    save_tuned_state(tmp_path / "poet.st", some_state(), SHAPE)
    states = make_states()
    added = states.add_file(tmp_path / "poet.st")
    assert (added.name, added.form, added.source, added.persistent) == ("poet", "tuned", "poet.st", True)
    assert (added.frozen.has_shifts, added.frozen.num_tokens) == (False, 0)
    assert states.entries() == (added,)
    assert states.get("poet") == states.get(str(added.id)) == states.get(str(added.id).upper()) == added
    assert states.usage().num_bytes == STATE_BYTES
    [copied] = states.fork("poet", ["copy"], KEPT)
    assert states.delete("copy") == copied
    assert (states.entries(), states.usage().num_bytes) == ((added,), STATE_BYTES)
    assert np.array_equal(copied.frozen.state["wkv"], some_state()["wkv"])  # callers that hold it can go on


def test_a_file_has_the_id_that_the_operator_gives_it(tmp_path: Path) -> None:
    save_tuned_state(tmp_path / "poet.st", some_state(), SHAPE)
    states, key = make_states(), uuid.UUID(int=7)
    assert states.add_file(tmp_path / "poet.st", "a", key) == states.get(str(key))
    with pytest.raises(InvalidRequestError, match=r"two states have the id .*; give each its own"):
        states.add_file(tmp_path / "poet.st", "b", key)
    assert names(states) == ["a"]


def test_an_unknown_name_is_an_error_that_tells_the_known_ones() -> None:
    states = make_states()
    with pytest.raises(NotFoundError, match="'poet' does not exist; there are: none"):
        states.get("poet")
    put(states, "b")
    put(states, "a")
    for ask in (states.get, states.delete, lambda name: states.fork(name, ["x"], KEPT), states.set_default):
        with pytest.raises(NotFoundError, match="'poet' does not exist; there are: a, b"):
            ask("poet")
    states.delete("a")
    with pytest.raises(NotFoundError, match="'a' is gone: it was removed; there are: b"):
        states.get("a")


def test_a_long_list_of_names_is_cut_short() -> None:
    states = make_states()
    states.fork(put(states, "n").name, [f"n{number:02}" for number in range(30)], KEPT)
    with pytest.raises(NotFoundError, match=r"n18 and 11 more$"):
        states.get("poet")


@pytest.mark.parametrize("name", ["", NO_INITIAL_STATE, "a/", "/a", "a/b/c", "a\\b", "..", " a", "\0", "x" * 129])
def test_what_can_be_no_name_is_refused(name: str) -> None:
    states = make_states()
    with pytest.raises(InvalidRequestError, match=r"name: .* expected 1 to 128 printable characters"):
        put(states, name)
    with pytest.raises(InvalidRequestError, match="owner"):
        put(states, "a", keeping=Retention(owner=name or "/"))
    assert names(states) == []


def test_a_name_that_is_taken_is_refused_and_nothing_changes() -> None:
    states = make_states()
    first = put(states, "a")
    for change in (
        lambda: put(states, "a", seed=1),
        lambda: states.fork("a", ["b", "a"], KEPT),
        lambda: states.move(put(states, "c").name, "a", KEPT),
    ):
        with pytest.raises(InvalidRequestError, match="'a' is not allowed; expected a name that is free; 'a' "):
            change()
    assert (states.get("a"), names(states)) == (first, ["a", "c"])


@pytest.mark.parametrize("wanted", [[], ["b", "b"]])
def test_forks_have_names_that_differ(wanted: list[str]) -> None:
    states = make_states()
    put(states, "a")
    with pytest.raises(InvalidRequestError, match=r"names: .* expected one or more names, all different"):
        states.fork("a", wanted, KEPT)


def test_ids_are_the_files_own_where_they_are_free() -> None:
    states, key = make_states(), uuid.UUID(int=9)
    first = states.add(LoadedState("prefab", some_state(), id=key), "a", "test")
    second = states.add(LoadedState("prefab", some_state(1), id=key), "b", "test")
    assert (first.id, second.id != key) == (key, True)
    again = make_states().add(LoadedState("tuned", some_state(1)), "b", "test")
    assert again.id == make_states().add(LoadedState("tuned", some_state(1)), "b", "elsewhere").id


@pytest.mark.parametrize("spelled", ["{}", "{{{}}}", "urn:uuid:{}"])
def test_a_name_that_spells_an_id_is_refused(spelled: str, tmp_path: Path) -> None:
    states = make_states(tmp_path)
    first = put(states, "first")
    name = spelled.format(first.id)
    put(states, "second", 2)
    allowed = "a name that is not a UUID, since state ids are UUIDs"
    for enter in (
        lambda: put(states, name, 2),
        lambda: states.fork("second", ["x", name], KEPT),
        lambda: states.move("second", name, KEPT),
        lambda: states.add_file(tmp_path / "any", name),
    ):
        with pytest.raises(InvalidRequestError, match=f"name: .* is not allowed; expected {allowed}"):
            enter()
    assert names(states) == ["first", "second"]


def test_an_id_means_its_state_whatever_an_older_state_is_called(tmp_path: Path) -> None:
    key = uuid.uuid4()
    files = make_states().files
    files.save(tmp_path / f"{uuid.uuid4()}.state", str(key), some_initial(1))
    states = make_states(tmp_path)  # as an earlier version left it
    assert states.get(str(key)).frozen.digest == some_initial(1).digest
    states.set_default(str(key))
    assert put(states, "new", 2).id != key
    later = states.put("later", some_initial(3), KEPT, source="test", key=key)
    assert later.id != key  # it would take the name's place
    old = states.get(str(key))
    moved = states.move(str(old.id), "moved", PERSISTENT)
    assert (states.get("moved"), states.default) == (moved, moved)


def test_the_digest_follows_the_values_and_not_the_name() -> None:
    states = make_states()
    digests = [put(states, name, seed).frozen.for_request.root for name, seed in (("a", 0), ("same", 0), ("other", 1))]
    assert digests[0] == digests[1] != digests[2]


def test_a_state_is_a_copy_that_nobody_can_write_to() -> None:
    mine, logits = some_state(), np.zeros(10, np.float32)
    initial = freeze_state(mine, SHAPE, "request", logits=logits)
    mine["wkv"][:] = 0
    logits[:] = 1
    assert same(initial.state, some_state())
    assert initial.logits is not None
    assert not initial.logits.any()
    for array in (initial.state["wkv"], initial.logits):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


@pytest.mark.parametrize("array", [np.zeros(9, np.float32), np.full(10, np.nan, np.float32)])
def test_logits_that_do_not_fit_are_refused(array: np.ndarray) -> None:
    with pytest.raises(StateError, match="upload: logits"):
        freeze_state(some_state(), SHAPE, "upload", logits=array)


def test_uploads_of_every_form_are_read(tmp_path: Path) -> None:
    files = make_states().files
    save_tuned_state(tmp_path / "tuned", some_state(), SHAPE)
    tuned = files.read(tmp_path / "tuned")
    (tmp_path / "prefab").write_bytes(
        encode_prefab(Prefab("its own name", uuid.UUID(int=5), True, some_state(1)), SHAPE)
    )
    prefab = files.read(tmp_path / "prefab")
    time_states = {f"blocks.{n}.att.time_state": np.full((2, 4, 4), n, np.float32) for n in range(2)}
    pth = files.read(save_pth(TensorModel(SHAPE, time_states), tmp_path / "pth"))
    assert [loaded.form for loaded in (tuned, prefab, pth)] == ["tuned", "prefab", "tuned"]
    assert (prefab.name, prefab.id, prefab.default) == ("its own name", uuid.UUID(int=5), True)
    assert np.array_equal(tuned.state["wkv"], some_state()["wkv"])
    assert pth.state["wkv"][1, 0, 0, 0] == 1
    assert files.freeze(prefab, "upload").num_tokens is None  # it has taken in some
    (tmp_path / "upload").write_bytes(b"rubbish")
    with pytest.raises(StateError, match="upload: is neither"):
        files.read(tmp_path / "upload")


def default_of(states: BlockingStates) -> str | None:
    return None if states.default is None else states.default.name


def test_the_default_is_one_that_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(encode_prefab(Prefab("main", uuid.UUID(int=5), True, some_state()), SHAPE))
    states = make_states(tmp_path / "states")
    assert default_of(states) is None
    states.add_file(tmp_path / "file")
    put(states, "leased")
    with pytest.raises(InvalidRequestError, match="the default state has to be persistent, and 'leased' is not"):
        states.set_default("leased")
    assert default_of(states) == "main"
    [kept] = states.fork("main", ["kept"], PERSISTENT)
    states.set_default("kept")
    advanced = advance(states, kept, some_initial(1))
    assert states.default == advanced
    states.move("kept", "moved", PERSISTENT)
    assert default_of(states) == "moved"
    states.move("moved", "mine", KEPT)
    assert default_of(states) is None
    states.set_default(put(states, "other", 2, PERSISTENT).name)
    assert default_of(states) == "other"
    states.set_default(None)
    assert default_of(states) is None


def test_forks_share_their_arrays_and_live_on_by_themselves() -> None:
    states = make_states()
    origin = put(states, "a")
    forks = states.fork("a", ["b", "c"], Retention(owner="bob"))
    assert [fork.frozen for fork in forks] == [origin.frozen] * 2
    assert [(fork.owner, fork.source) for fork in forks] == [("bob", "copy of a")] * 2
    assert len({entry.id for entry in states.entries()}) == 3
    assert states.usage().num_bytes == origin.frozen.num_bytes
    advance(states, forks[0], some_initial(1))
    states.delete("a")
    assert same(states.get("c").frozen.state, origin.frozen.state)
    assert states.usage().num_bytes == 2 * origin.frozen.num_bytes


def test_a_taken_state_has_a_new_name_and_owner_and_the_same_id() -> None:
    states = make_states()
    origin = put(states, "a")
    taken = states.move("a", "b", Retention(owner="bob"))
    assert (taken.name, taken.owner, taken.id, taken.frozen) == ("b", "bob", origin.id, origin.frozen)
    with pytest.raises(NotFoundError, match="'a' is gone: it was renamed to 'b'; there are: b"):
        states.get("a")
    assert states.move(str(origin.id), "b", KEPT).owner == "b"
    assert names(states) == ["b"]


def test_a_name_stands_for_another_state_only_if_nobody_was_quicker() -> None:
    states = make_states()
    old = put(states, "a")
    new = advance(states, old, some_initial(1))
    assert (states.get("a"), new.id, new.source) == (new, old.id, "advance")
    with pytest.raises(NotFoundError, match="'a' was removed or replaced meanwhile"):
        advance(states, old, some_initial(2))
    assert states.usage().num_bytes == new.frozen.num_bytes


def test_who_cares_hears_when_the_last_state_of_its_values_goes() -> None:
    states, told = make_states(), list[str]()
    states.on_forgotten(told.append)
    first = put(states, "a")
    put(states, "equal")
    states.fork("a", ["fork"], KEPT)
    states.delete("a")
    moved = states.move("fork", "moved", KEPT)
    advance(states, moved, some_initial(1))
    assert told == []
    states.delete("equal")
    assert told == [first.frozen.digest]


@pytest.mark.parametrize(
    ("keeping", "field"),
    [
        (Retention(ttl=0), "ttl: 0"),
        (Retention(ttl=float("nan")), "ttl: nan"),
        (Retention(ttl=1e9), "ttl: .* above 0 and at most 2592000"),
        (Retention(persistent=True, ttl=5), "ttl: 5 .* null for a persistent state"),
        (Retention(persistent=True, owner="bob"), "owner: 'bob' .* null for a persistent state"),
        (PERSISTENT, "persistent: True .* the server has no folder for persistent states"),
    ],
)
def test_how_a_state_is_kept_is_checked(keeping: Retention, field: str) -> None:
    states = make_states()
    put(states, "a")
    for change in (
        lambda: put(states, "b", keeping=keeping),
        lambda: states.fork("a", ["b"], keeping),
        lambda: states.move("a", "a", keeping),
        lambda: states.check_place("b", keeping, 0),
    ):
        with pytest.raises(InvalidRequestError, match=field):
            change()
    assert names(states) == ["a"]


def test_what_the_operator_brings_can_not_be_changed(tmp_path: Path) -> None:
    """The next start loads the operator's file again, so a change would be lost."""
    save_tuned_state(tmp_path / "poet.st", some_state(), SHAPE)
    states = make_states(tmp_path / "states")
    poet = states.add_file(tmp_path / "poet.st")
    changes: list[Callable[[], object]] = [
        lambda: advance(states, poet, some_initial(1)),
        lambda: states.delete("poet"),
        lambda: states.move("poet", "mine", PERSISTENT),
        lambda: states.move(str(poet.id), "poet", KEPT),
    ]
    for change in changes:
        with pytest.raises(InvalidRequestError, match="state: 'poet' is not allowed; expected a state that can be cha"):
            change()
    assert (states.entries(), poet.read_only) == ((poet,), True)
    [copied] = states.fork("poet", ["mine"], PERSISTENT)
    assert not copied.read_only
    advanced = advance(states, copied, some_initial(1))
    again = make_states(tmp_path / "states")
    again.add_file(tmp_path / "poet.st")
    assert again.get("mine").frozen.digest == advanced.frozen.digest
