"""Leases end when they are not used, and the newest give way if room is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.errors import NotFoundError, OverloadedError
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.named.quota import DEFAULT_TTL
from tests.support.named_states import BlockingStates, Clock, make_states, some_initial

SIZE = some_initial().num_bytes


def put(states: BlockingStates, name: str, owner: str | None = None, ttl: float | None = None) -> None:
    states.put(name, some_initial(len(states.entries())), Retention(owner=owner, ttl=ttl), source="test")


def names(states: BlockingStates) -> str:
    return " ".join(entry.name for entry in states.entries())


def test_what_is_not_used_is_gone_after_its_time_and_says_so() -> None:
    clock = Clock()
    states = make_states(clock=clock)
    put(states, "a", ttl=10)
    clock.now = 9.9
    assert names(states) == "a"
    clock.now = 10.0
    assert names(states) == ""
    assert states.usage().num_bytes == 0
    for ask in (states.get, states.delete):
        with pytest.raises(NotFoundError, match="'a' is gone: its lease ended after 10 seconds without use; there are"):
            ask("a")
    put(states, "a")
    assert states.get("a").owner == "a"


def test_every_use_renews_all_that_the_owner_has() -> None:
    clock = Clock()
    states = make_states(clock=clock)
    put(states, "a", "bob", ttl=10)
    put(states, "b", "bob")
    put(states, "c", "ann", ttl=10)
    for now in (6.0, 12.0, 18.0):
        clock.now = now
        entry = states.get("a")
    assert names(states) == "a b"
    assert states.seconds_left(states.get("b")) == 10
    clock.now = 20.0
    assert states.seconds_left(entry) == 8  # listing states does not use them
    states.fork("a", ["d"], Retention(owner="ann", ttl=100))
    assert [states.seconds_left(entry) for entry in states.entries()] == [10, 10, 100]
    clock.now = 30.0
    assert names(states) == "d"


def test_a_lease_has_a_time_unless_told() -> None:
    states = make_states(clock=Clock())
    put(states, "a")
    assert states.seconds_left(states.get("a")) == DEFAULT_TTL


def test_the_newest_leases_give_way_with_all_they_have() -> None:
    states = make_states(capacity=4 * SIZE)
    for name, owner in (("a", "old"), ("b", "middle"), ("c", "new"), ("d", "new")):
        put(states, name, owner)
    put(states, "e", "middle")
    assert names(states) == "a b e"
    with pytest.raises(NotFoundError, match="'c' is gone: its lease was ended to make room for an older one"):
        states.get("c")
    put(states, "f", "old")
    assert names(states) == "a b e f"
    put(states, "g", "old")
    assert names(states) == "a f g"


def test_one_for_whom_nobody_gives_way_is_refused_and_nothing_is_lost() -> None:
    clock = Clock()
    states = make_states(capacity=3 * SIZE, clock=clock)
    for name, owner in (("a", "old"), ("b", "middle"), ("c", "new")):
        put(states, name, owner, ttl=60)
    clock.now = 20.0
    refused: tuple[str | None, ...] = ("new", "newcomer", None)
    for asker in refused:
        with pytest.raises(OverloadedError, match=f"no room for {SIZE} more bytes: {3 * SIZE} of at most ") as raised:
            put(states, "d", asker)
        assert raised.value.retry_after == 40
    assert names(states) == "a b c"
    states.check_place("d", Retention(owner="middle"), SIZE)
    with pytest.raises(OverloadedError):
        states.check_place("d", Retention(owner="middle"), 2 * SIZE)
    assert names(states) == "a b c"


def test_a_lease_that_gave_way_begins_again_as_the_newest() -> None:
    states = make_states(capacity=2 * SIZE)
    put(states, "a", "first")
    put(states, "b", "second")
    put(states, "c", "first")
    assert names(states) == "a c"
    states.delete("c")
    put(states, "d", "third")
    with pytest.raises(OverloadedError):
        put(states, "e", "second")
    assert names(states) == "a d"


def test_persistent_states_do_not_give_way_and_come_as_newcomers(tmp_path: Path) -> None:
    states = make_states(tmp_path, capacity=2 * SIZE)
    put(states, "leased", "bob")
    states.put("kept", some_initial(1), Retention(persistent=True), source="test")
    with pytest.raises(OverloadedError):
        put(states, "more", "bob")
    with pytest.raises(OverloadedError):
        states.put("more", some_initial(2), Retention(persistent=True), source="test")
    assert names(states) == "leased kept"
    assert states.seconds_left(states.get("kept")) is None


def test_an_owner_who_has_nothing_left_begins_again_as_the_newest() -> None:
    states = make_states(capacity=2 * SIZE)
    put(states, "a", "first", ttl=5)
    put(states, "b", "second")
    states.delete("a")
    put(states, "c", "first")
    assert states.seconds_left(states.get("c")) == DEFAULT_TTL
    put(states, "d", "second")
    assert names(states) == "b d"


def test_the_number_of_names_is_bound_too() -> None:
    states = make_states(max_names=3)
    put(states, "a")
    with pytest.raises(OverloadedError, match="states: no room for 3 more names: 1 of at most 3 are in use"):
        states.fork("a", ["b", "c", "d"], Retention())
    states.fork("a", ["b", "c"], Retention())
    with pytest.raises(OverloadedError, match="no room for 1 more names: 3 of at most 3 are in use"):
        put(states, "d")
    assert names(states) == "a b c"


def test_what_is_shared_is_freed_when_the_last_name_goes() -> None:
    states = make_states(capacity=2 * SIZE)
    put(states, "a", "first")
    put(states, "b", "second")
    states.fork("b", ["b2"], Retention(owner="third"))
    put(states, "c", "first")  # removing only the third's name would free nothing
    assert names(states) == "a c"
    states.fork("a", ["a2"], Retention(owner="fourth"))
    with pytest.raises(OverloadedError):
        put(states, "d", "first")  # ending the fourth's lease would free nothing
    assert names(states) == "a c a2"
