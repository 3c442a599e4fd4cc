"""States in namespaces: the visible names, and the leases that give way."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.errors import InvalidRequestError, OverloadedError
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.named.quota import Quota
from tests.support.named_states import STATE_BYTES, advance, make_states, some_initial


def test_leases_of_another_namespace_do_not_give_way() -> None:
    states = make_states(capacity=2 * STATE_BYTES, quota=Quota(num_bytes=3 * STATE_BYTES))
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
    states = make_states()
    for name in ("shared", "ann/a", "bob/b"):
        states.put(name, some_initial(), Retention(), source="test")
    states.delete("ann/a")
    assert [entry.plain_name for entry in states.entries("bob")] == ["b"]
    assert str(states.missing("a", "ann")) == "state 'a' is gone: it was removed; there are: shared"
    assert str(states.missing("a", "bob")) == "state 'a' does not exist; there are: b, shared"


class TestQuotas:
    def test_a_namespace_has_so_many_bytes(self) -> None:
        states = make_states(quota=Quota(num_bytes=2 * STATE_BYTES))
        states.put("ann/a", some_initial(1), Retention(), source="test")
        states.fork("ann/a", ["ann/copy"], Retention())  # shares the arrays
        states.put("ann/b", some_initial(2), Retention(), source="test")
        assert states.room_of("ann") == (2 * STATE_BYTES, 2 * STATE_BYTES)
        full = 2 * STATE_BYTES
        refused = f"no room for {STATE_BYTES} more bytes of the API key 'ann': it has {full} of at most {full}"
        with pytest.raises(OverloadedError, match=refused):
            states.check_place("ann/c", Retention(), STATE_BYTES)
        with pytest.raises(OverloadedError, match=refused):
            states.put("ann/c", some_initial(3), Retention(), source="test")
        with pytest.raises(OverloadedError, match=refused):
            advance(states, states.get("ann/copy"), some_initial(3))
        states.put("bob/c", some_initial(3), Retention(), source="test")
        with pytest.raises(OverloadedError, match=refused):
            states.fork("bob/c", ["ann/d"], Retention())
        advance(states, states.get("ann/b"), some_initial(3))
        states.delete("ann/b")
        states.put("ann/c", some_initial(4), Retention(), source="test")
        assert states.room_of("ann")[0] == 2 * STATE_BYTES

    def test_a_namespace_has_so_many_names(self) -> None:
        states = make_states(quota=Quota(names=2))
        states.put("ann/a", some_initial(), Retention(), source="test")
        refused = "no room for 2 more names of the API key 'ann': it has 1 of at most 2"
        with pytest.raises(OverloadedError, match=refused):
            states.fork("ann/a", ["ann/b", "ann/c"], Retention())
        states.fork("ann/a", ["ann/b"], Retention())
        states.move("ann/a", "ann/c", Retention())
        with pytest.raises(OverloadedError, match="no room for 1 more names of the API key 'ann'"):
            states.put("ann/d", some_initial(), Retention(), source="test")
        for name in ("a", "b", "c"):  # shared ones have no quota
            states.put(name, some_initial(), Retention(), source="test")
        states.delete("ann/c")
        states.put("ann/d", some_initial(), Retention(), source="test")

    def test_a_state_that_moves_to_a_namespace_needs_room_there(self) -> None:
        states = make_states(quota=Quota(num_bytes=2 * STATE_BYTES, names=3))
        for number, name in enumerate(("ann/a", "ann/b", "shared", "bob/a")):
            states.put(name, some_initial(number), Retention(), source="test")
        states.fork("ann/a", ["copy"], Retention())
        for name in ("shared", "bob/a"):
            with pytest.raises(OverloadedError, match=f"no room for {STATE_BYTES} more bytes of the API key 'ann'"):
                states.move(name, "ann/c", Retention())
        states.move("copy", "ann/c", Retention())  # shares the arrays
        states.fork("ann/a", ["copy"], Retention())
        with pytest.raises(
            OverloadedError, match="no room for 1 more names of the API key 'ann': it has 3 of at most 3"
        ):
            states.move("copy", "ann/d", Retention())
        states.move("ann/c", "ann/d", Retention())
        states.move("ann/d", "c", Retention())
        assert states.room_of("ann")[0] == 2 * STATE_BYTES
        assert {entry.name for entry in states.entries()} == {"ann/a", "ann/b", "shared", "bob/a", "copy", "c"}

    def test_copies_in_several_namespaces_need_room_in_each(self) -> None:
        states = make_states(quota=Quota(num_bytes=STATE_BYTES, names=1))
        states.put("ann/a", some_initial(1), Retention(), source="test")
        states.put("shared", some_initial(2), Retention(), source="test")
        for names in (["bob/a", "ann/b"], ["copy", "bob/a", "bob/b"]):
            with pytest.raises(OverloadedError, match="of the API key"):
                states.fork("shared", names, Retention())
        states.fork("shared", ["copy", "bob/a"], Retention())

    def test_a_lease_in_a_namespace_lasts_so_long(self) -> None:
        states = make_states(quota=Quota(ttl=5000.0))
        for name, ttl in (("ann/a", 5000.0), ("b", 6000.0), ("ann/c", None)):
            states.put(name, some_initial(), Retention(ttl=ttl), source="test")
        with pytest.raises(InvalidRequestError, match=r"ttl: 6000.0 is not allowed; expected at most 5000 seconds"):
            states.put("ann/b", some_initial(), Retention(ttl=6000.0), source="test")
        with pytest.raises(InvalidRequestError, match="at most 5000 seconds"):
            states.move("ann/a", "ann/a", Retention(ttl=6000.0))

    def test_what_was_saved_is_loaded_even_where_it_is_too_much_now(self, tmp_path: Path) -> None:
        states = make_states(tmp_path)
        for number in range(3):
            states.put(f"ann/{number}", some_initial(number), Retention(persistent=True), source="test")
        again = make_states(tmp_path, quota=Quota(num_bytes=1, names=1))
        assert {entry.name for entry in again.entries()} == {"ann/0", "ann/1", "ann/2"}
        with pytest.raises(OverloadedError):
            again.put("ann/3", some_initial(3), Retention(), source="test")
        again.delete("ann/0")
