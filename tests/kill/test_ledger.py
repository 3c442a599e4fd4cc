"""The states that must exist after a crash, and those that may."""

from __future__ import annotations

import pytest

from tools.kill.ledger import Ledger


def ledger(**states: str) -> Ledger:
    """Return a ledger in which these states are acknowledged."""
    made = Ledger()
    for name, digest in states.items():
        with made.write("create", name) as answered:
            answered[name] = digest
    return made


def cut_off(ledger: Ledger, *names: str, may_remove: bool = False, same_state: bool = False) -> None:
    """Note a write of `names` that gets no answer."""
    with pytest.raises(ConnectionError), ledger.write("cut", *names, may_remove=may_remove, same_state=same_state):
        raise ConnectionError


def test_acknowledged_states_must_be_there_and_right() -> None:
    held = ledger(a="1", b="2", c="3")
    with held.write("remove", "c", may_remove=True) as answered:
        answered["c"] = None
    assert held.check({"a": "1", "b": "2"}) == []
    assert held.check({"b": "3", "c": "3", "d": "4"}) == [
        "'a' is lost",
        "'b' is 3, not 2",
        "'c' was removed and is back",
        "'d' was never made",
    ]


@pytest.mark.parametrize("found", [{"a": "1"}, {"a": "2"}])
def test_a_change_that_had_no_answer_has_happened_or_not(found: dict[str, str]) -> None:
    held = ledger(a="1")
    cut_off(held, "a")
    assert held.check(found) == []
    assert held.states == found
    assert held.cut_off == {f"cut: the {'old' if found['a'] == '1' else 'new'}": 1}


def test_a_change_that_had_no_answer_does_not_lose_the_state() -> None:
    held = ledger(a="1")
    cut_off(held, "a")
    assert held.check({}) == ["cut of {'a': '1'} left nothing"]


@pytest.mark.parametrize(("found", "faults"), [({}, 0), ({"a": "1"}, 0), ({"a": "2"}, 1)])
def test_a_removal_leaves_the_old_state_or_nothing(found: dict[str, str], faults: int) -> None:
    held = ledger(a="1")
    cut_off(held, "a", may_remove=True)
    assert len(held.check(found)) == faults


@pytest.mark.parametrize(
    ("found", "faults"), [({"a": "1"}, 0), ({"b": "1"}, 0), ({}, 1), ({"a": "1", "b": "1"}, 1), ({"b": "2"}, 1)]
)
def test_a_move_leaves_the_state_under_one_of_the_names(found: dict[str, str], faults: int) -> None:
    held = ledger(a="1")
    cut_off(held, "a", "b", same_state=True)
    assert len(held.check(found)) == faults
    assert held.check(found) == []  # the ledger now expects what was found
