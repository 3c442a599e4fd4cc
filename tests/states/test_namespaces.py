"""States in namespaces: who meets whose names, and whose leases give way."""

from __future__ import annotations

import pytest

from rnn_engine.errors import OverloadedError
from states.named.entry import Retention
from tests.support.named_states import STATE_BYTES, make_registry, some_initial


def test_leases_of_another_namespace_do_not_give_way() -> None:
    states = make_registry(capacity=2 * STATE_BYTES)
    states.put("ann/a", some_initial(1), Retention(), source="test")
    states.put("bob/b", some_initial(2), Retention(), source="test")
    with pytest.raises(OverloadedError):
        states.put("ann/c", some_initial(3), Retention(owner="ann/a"), source="test")
    assert [entry.name for entry in states.entries()] == ["ann/a", "bob/b"]
    states.delete("bob/b")
    states.put("ann/b", some_initial(2), Retention(), source="test")
    states.put("ann/c", some_initial(3), Retention(owner="ann/a"), source="test")
    assert [entry.name for entry in states.entries()] == ["ann/a", "ann/c"]


def test_a_namespace_is_told_of_its_own_names_and_shared_ones() -> None:
    states = make_registry()
    for name in ("shared", "ann/a", "bob/b"):
        states.put(name, some_initial(), Retention(), source="test")
    states.delete("ann/a")
    assert [entry.plain_name for entry in states.entries("bob")] == ["b"]
    assert str(states.missing("a", "ann")) == "state 'a' is gone: it was removed; there are: shared"
    assert str(states.missing("a", "bob")) == "state 'a' does not exist; there are: b, shared"
