"""Named states that servers share: all see a change of one, and none overwrites a state that it has not read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import (
    EngineClosedError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    RnnEngineError,
    StateError,
    StorageError,
    UnavailableError,
)
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import FrozenState, freeze_lora, freeze_state
from rnn_engine_states.named.entry import NamedState, Retention
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.named.store import StateStore, Viewer
from rnn_engine_states.shared.client import StoreClient
from rnn_engine_states.shared.config import StoreOutcome, StoreUrl
from rnn_engine_states.shared.table import SharedTable, StoreReplica
from tests.support.named_states import FINGERPRINT, SHAPE, Clock, make_states, some_initial, some_state
from tests.support.store_server import SlowProxy, StoreServer
from tests.support.toy_states import same

SIZE = some_initial().num_bytes
LEASED = Retention()
KEPT = Retention(persistent=True)


class Fleet:
    """Servers over one store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[StoreClient] = []
        self.forgotten: list[str] = []

    def server(
        self,
        *,
        model: str = FINGERPRINT,
        capacity: int = 1 << 20,
        own: str | None = None,
        timeout: float = 30.0,
        url: str | None = None,
        quota: Quota | None = None,
    ) -> StateStore:
        """Return the states of a new server. If `own` is given, it brings a state of this name."""
        own_states = make_states(model=model)
        if own is not None:
            own_states.add(LoadedState("full", some_state(9)), own, "file")
        client = StoreClient(StoreUrl.parse(url or self._url), timeout)
        self._clients.append(client)
        quota, forget = quota or Quota(), self.forgotten.append
        return StateStore(SharedTable(own_states.table, client, model, capacity=capacity, quota=quota, forget=forget))

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def fleet(store: StoreServer) -> Iterator[Fleet]:
    with store.client() as client:
        client.flushall()
        client.config_set("maxmemory", 64 << 20)
    fleet = Fleet(store.url)
    yield fleet
    fleet.close()


def put(server: StateStore, name: str, seed: int = 0, retention: Retention = LEASED) -> Awaitable[NamedState]:
    return server.put(name, some_initial(seed), retention, source="test")


async def names(server: StateStore) -> list[str]:
    return [entry.name for entry in (await server.list()).entries]


def table_of(server: StateStore) -> SharedTable:
    table = server._access
    assert isinstance(table, SharedTable)
    return table


def operations(server: StateStore) -> int:
    """Return how many operations on the store have succeeded."""
    return table_of(server)._client.counters().outcomes[StoreOutcome.DONE]


def unreadable(server: StateStore) -> int:
    """Return how many values of the store could not be parsed."""
    return table_of(server)._client.counters().unreadable


async def test_calls_that_wait_together_share_a_read_of_the_names(fleet: Fleet) -> None:
    one, other = fleet.server(), fleet.server()
    await put(one, "talk", 1)
    before = operations(other)
    found = await asyncio.gather(*(other.find("talk") for _ in range(20)))
    assert all(entry is not None and entry.name == "talk" for entry in found)
    assert operations(other) - before == 2  # a read must not answer a call that began before it
    await put(one, "walk", 1)
    assert await names(other) == ["talk", "walk"]
    assert operations(other) - before == 3


async def test_a_look_up_in_a_namespace_and_among_shared_states_reads_the_names_once(fleet: Fleet) -> None:
    class Ann(Viewer):
        home = "ann"

    one, other = fleet.server(), fleet.server()
    await put(one, "talk", 1)
    before = operations(other)
    assert (await other.seen_by(Ann()).get("talk")).name == "talk"
    assert operations(other) - before == 3  # the names, the use of the lease, the values
    await put(one, "ann/talk", 2)
    assert (await other.seen_by(Ann()).get("talk")).name == "ann/talk"


async def test_a_read_that_fails_answers_nobody(store: StoreServer, fleet: Fleet) -> None:
    proxy = SlowProxy(store.port, 0.0)
    one, other = fleet.server(), fleet.server(url=proxy.url)
    await put(one, "talk", 1)
    assert await other.find("talk") is not None
    await one.delete("talk")
    proxy.close()
    found = await asyncio.gather(*(other.find("talk") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, UnavailableError) for error in found), found


def let_pass(store: StoreServer, seconds: float, *servers: StateStore) -> None:
    """Set the last use of all leases back by `seconds`."""
    with store.client() as client:
        for key in store.keys("*:names:used"):
            for owner in client.execute_command("ZRANGE", key, 0, -1):  # type: ignore[no-untyped-call]
                client.zincrby(key, -seconds, owner)
    for server in servers:
        table_of(server)._replica.lose_track()


async def test_what_is_made_at_one_server_is_known_at_the_other(fleet: Fleet) -> None:
    one, other = fleet.server(), fleet.server()
    made = await put(one, "talk", 1, Retention(owner="ann", ttl=60))
    got = await other.get("talk")
    assert (got.id, got.version, got.owner, got.source) == (made.id, made.version, "ann", "test")
    assert same(got.frozen.state, some_initial(1).state)
    assert (got.frozen.num_tokens, got.frozen.last_tokens) == (3, (1, 2, 3))
    [listed] = (await other.list()).entries
    assert listed.frozen.num_bytes == SIZE
    assert listed.frozen.has_shifts == some_initial(1).has_shifts
    with pytest.raises(StateError, match="were not read"):
        _ = listed.frozen.for_request
    assert got.expires_in == 60.0
    assert other.usage().names == 1
    await other.delete(str(made.id))
    with pytest.raises(NotFoundError, match="'talk' is gone: it was removed; there are: none"):
        await one.get("talk")
    assert fleet.forgotten.count(made.frozen.digest) == 2


async def test_of_two_who_change_a_state_one_is_refused(fleet: Fleet) -> None:
    one, other = fleet.server(), fleet.server()
    await put(one, "a")
    first, second = await one.get("a"), await other.get("a")
    assert first == second
    changed = await other.compare_and_set(second, some_initial(1), source="other")
    assert changed.version > first.version
    with pytest.raises(NotFoundError, match="'a' was removed or replaced meanwhile"):
        await one.compare_and_set(first, some_initial(2), source="one")
    assert (await one.get("a")).frozen.digest == some_initial(1).digest


async def test_of_many_who_want_a_name_at_once_one_gets_it(fleet: Fleet) -> None:
    servers = [fleet.server() for _ in range(4)]
    ended = await asyncio.gather(
        *(put(server, "name", number) for number, server in enumerate(servers)), return_exceptions=True
    )
    [made] = [one for one in ended if isinstance(one, NamedState)]
    assert sum(isinstance(one, InvalidRequestError) for one in ended) == 3
    for server in servers:
        assert (await server.get("name")).frozen.digest == made.frozen.digest


async def test_changes_of_all_at_once_are_all_made(fleet: Fleet) -> None:
    servers = [fleet.server() for _ in range(3)]
    wanted = [f"n{number}" for number in range(24)]
    await asyncio.gather(*(put(servers[number % 3], name, number % 5) for number, name in enumerate(wanted)))
    entries = (await servers[0].list()).entries
    assert sorted(entry.name for entry in entries) == sorted(wanted)
    assert len({entry.version for entry in entries}) == 24
    for server in servers:
        assert sorted(await names(server)) == sorted(wanted)
        assert server.usage().num_bytes == 5 * SIZE


async def test_values_go_with_the_last_name_that_stands_for_them(fleet: Fleet, store: StoreServer) -> None:
    one, other = fleet.server(), fleet.server()
    await put(one, "a", 1)
    await other.fork("a", ["b", "c"], LEASED)
    await one.delete("a")
    await other.delete("b")
    assert len(store.keys("*:value:*")) == 1
    assert same((await one.get("c")).frozen.state, some_initial(1).state)
    with store.client() as client:
        assert client.ttl(store.keys("*:value:*")[0]) == -1  # no expiry, so that it never gives way
    await one.move("c", "d", KEPT)
    assert (await other.get("d")).persistent
    await one.delete("d")
    assert store.keys("*:value:*") == []


async def test_a_lease_lasts_while_any_server_uses_it_and_ends_everywhere(fleet: Fleet, store: StoreServer) -> None:
    one, other = fleet.server(), fleet.server()
    await put(one, "a", 1, Retention(owner="ann", ttl=100))
    await put(one, "b", 2, Retention(owner="bob", ttl=100))
    let_pass(store, 90, one, other)
    assert (await other.get("a")).expires_in == 100.0
    let_pass(store, 20, one, other)
    assert await names(one) == ["a"]
    with pytest.raises(NotFoundError, match="its lease ended after 100 seconds without use"):
        await one.get("b")
    let_pass(store, 80, one, other)
    with pytest.raises(NotFoundError, match="'a' "):
        await other.get("a")
    assert await names(one) == []
    assert one.usage().leases == 0
    assert store.keys("*:value:*") == []


async def test_bounds_hold_for_all_servers_together(fleet: Fleet) -> None:
    one, other = fleet.server(capacity=2 * SIZE), fleet.server(capacity=2 * SIZE)
    await put(one, "a", 1, KEPT)
    await put(other, "b", 2, KEPT)
    with pytest.raises(OverloadedError, match="no room for"):
        await put(one, "c", 3)
    await one.fork("a", ["same"], KEPT)
    small = Quota(names=1)
    ann, also_ann = fleet.server(quota=small), fleet.server(quota=small)
    await put(ann, "ann/a", 1)
    with pytest.raises(OverloadedError, match="no room for 1 more names of the API key 'ann'"):
        await put(also_ann, "ann/b", 1)


async def test_the_operators_states_are_each_servers_own_and_serve_without_the_store(
    fleet: Fleet, store: StoreServer
) -> None:
    with_own, without = fleet.server(own="pirate"), fleet.server()
    assert await names(with_own) == ["pirate"]
    assert await names(without) == []
    with pytest.raises(InvalidRequestError, match=r"'pirate' is the name of state"):
        await put(with_own, "pirate")
    await put(without, "pirate", 3)
    assert (await with_own.get("pirate")).read_only
    assert (await with_own.get("pirate")).frozen.digest != some_initial(3).digest
    assert (await without.get("pirate")).frozen.digest == some_initial(3).digest
    [copy] = await with_own.fork("pirate", ["mine"], LEASED)
    got = await without.get("mine")
    assert got.id == copy.id
    assert got.frozen.digest == (await with_own.get("pirate")).frozen.digest
    with pytest.raises(InvalidRequestError, match="the server's operator loads it"):
        await with_own.delete("pirate")


async def test_models_have_names_of_their_own(fleet: Fleet) -> None:
    one, other = fleet.server(), fleet.server(model="another")
    await put(one, "a")
    assert await names(other) == []
    await put(other, "a")


async def test_without_the_store_only_the_operators_states_serve(tmp_path: Path) -> None:
    store = StoreServer(tmp_path)
    fleet = Fleet(store.url)
    try:
        server = fleet.server(own="pirate")
        await put(server, "a")
        store.kill()
        for ask in (lambda: server.get("a"), lambda: put(server, "b"), server.list, lambda: server.delete("a")):
            with pytest.raises(UnavailableError):
                await ask()
        assert (await server.get("pirate")).name == "pirate"
        assert await server.default() is None
        assert server.usage().names == 2
    finally:
        fleet.close()
        store.kill()


async def test_what_a_store_that_keeps_files_has_acknowledged_outlives_it(tmp_path: Path) -> None:
    store = StoreServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    fleet = Fleet(store.url)
    try:
        for number in range(4):
            server = fleet.server()
            for each in range(5):
                await put(server, f"n{number}-{each}", each, KEPT)
            store.kill()
            store.start()
        assert len(await names(fleet.server())) == 20
        assert (await fleet.server().get("n0-4")).frozen.digest == some_initial(4).digest
    finally:
        fleet.close()
        store.kill()


async def test_a_store_without_room_refuses_a_state_and_changes_nothing(fleet: Fleet, store: StoreServer) -> None:
    server = fleet.server()
    await put(server, "a", 1)
    with store.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StorageError, match="the store has no room"):
            await put(server, "b", 2)
        assert await names(server) == ["a"]
        assert server.usage().failed_writes == 1
        await server.delete("a")
        assert await names(server) == []


async def test_values_that_are_gone_or_damaged_are_told(
    fleet: Fleet, store: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, third = fleet.server(), fleet.server(), fleet.server()
    await put(one, "a", 1)
    [key] = store.keys("*:value:*")
    with store.client() as client:
        data = client.get(key)
        assert isinstance(data, bytes)
        client.set(key, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(NotFoundError, match="'a' is gone: its values in the store are missing or damaged"):
            await other.get("a")
        assert "treated as missing: the values of a named state: " in caplog.text
        assert unreadable(other) == 1
        await put(other, "b", 1)  # stores the same values anew
        assert same((await third.get("a")).frozen.state, some_initial(1).state)
        client.delete(key)
        with pytest.raises(NotFoundError, match="'a' is gone: its values in the store are missing or damaged"):
            await fleet.server().get("a")
    assert same((await one.get("a")).frozen.state, some_initial(1).state)  # it has them in memory
    await third.delete("a")


async def test_a_state_whose_values_are_gone_is_copied_and_renamed_by_a_server_that_holds_them(
    fleet: Fleet, store: StoreServer
) -> None:
    one, other = fleet.server(), fleet.server()
    await put(one, "a", 1)
    with store.client() as client:
        client.delete(*store.keys("*:value:*"))
    before = operations(other)
    for refused in (other.fork("a", ["b"], LEASED), other.move("a", "b", LEASED)):
        with pytest.raises(NotFoundError, match="'a' is gone: its values in the store are missing or damaged"):
            await refused
    assert operations(other) - before < 10  # it does not try again and again
    await one.fork("a", ["b"], LEASED)
    await other.move("b", "c", LEASED)
    assert same((await other.get("c")).frozen.state, some_initial(1).state)
    with store.client() as client:
        client.delete(*store.keys("*:value:*"))
    await one.move("c", "d", LEASED)
    assert same((await fleet.server().get("d")).frozen.state, some_initial(1).state)


async def test_a_name_that_can_not_be_understood_is_as_if_it_were_not_there(
    fleet: Fleet, store: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = fleet.server(), fleet.server()
    await put(one, "a", 1)
    [key] = store.keys("*:names:entries")
    with store.client() as client:
        [name] = client.execute_command("HKEYS", key)  # type: ignore[no-untyped-call]
        client.execute_command("HSET", key, name, "{}")  # type: ignore[no-untyped-call]
    await put(one, "b", 2)
    assert await names(other) == ["b"]
    assert unreadable(other) == 1
    assert "the store has a named state that can't be parsed: id: Field required" in caplog.text
    with pytest.raises(NotFoundError, match="there are: b"):
        await other.get("a")
    table_of(other)._replica.lose_track()
    await put(other, "a", 3)
    assert unreadable(other) == 1  # it is counted once
    assert await names(fleet.server()) == ["b", "a"]


async def test_a_server_that_has_missed_much_reads_all(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine_states.shared.names.MOST_CHANGES", 3)
    one, other = fleet.server(), fleet.server()
    await put(other, "first", 1)
    for number in range(8):
        await put(one, f"n{number}", 1)
        if number % 3 == 0:
            await other.list()
    await one.delete("first")
    assert sorted(await names(other)) == [f"n{number}" for number in range(8)]


async def test_a_store_that_forgot_everything_is_believed(fleet: Fleet, store: StoreServer) -> None:
    one = fleet.server()
    await put(one, "a", 1)
    with store.client() as client:
        client.flushall()
    assert await names(one) == []
    assert fleet.forgotten == [some_initial(1).digest]
    await put(one, "a", 1)
    assert (await fleet.server().get("a")).name == "a"


async def test_a_change_whose_client_left_is_made_or_not_and_the_next_knows(fleet: Fleet, store: StoreServer) -> None:
    proxy = SlowProxy(store.port, 0.01)
    try:
        one, other = fleet.server(url=proxy.url), fleet.server()
        await put(one, "a", 0)
        for number in range(6):
            task = asyncio.ensure_future(put(one, f"b{number}", 1))
            for _ in range(1 + 40 * number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await put(one, "c", 2)
        assert sorted(await names(one)) == sorted(await names(other))
        assert {"a", "c"} <= set(await names(one))
    finally:
        proxy.close()


async def test_calls_of_a_client_that_is_closed_meanwhile_are_told_so(fleet: Fleet, store: StoreServer) -> None:
    proxy = SlowProxy(store.port, 30.0)
    try:
        server = fleet.server(url=proxy.url)
        waiting = asyncio.ensure_future(server.list())
        await asyncio.sleep(0)
        await asyncio.to_thread(fleet.close)
        with pytest.raises(EngineClosedError, match="the engine has stopped"):
            await waiting
        with pytest.raises(EngineClosedError, match="the engine has stopped"):
            await server.list()
    finally:
        proxy.close()


async def outcome(call: Callable[[], Awaitable[object]]) -> object:
    """Return the result of a call, without ids and versions, or the class of its error."""
    try:
        result = await call()
    except RnnEngineError as error:
        return type(error)
    return describe(result)


def describe(result: object) -> object:
    if isinstance(result, NamedState):
        return (result.name, result.owner, result.form, result.frozen.digest, result.frozen.num_bytes)
    if isinstance(result, tuple):
        return tuple(map(describe, result))
    return result


@pytest.mark.parametrize("seed", range(3))
async def test_random_calls_at_several_servers_end_as_at_one(fleet: Fleet, store: StoreServer, seed: int) -> None:
    chance = random.Random(seed)
    clock = Clock()
    capacity = 3 * SIZE
    plain: StateStore = make_states(capacity=capacity, clock=clock).store
    servers = [fleet.server(capacity=capacity) for _ in range(3)]
    values: list[FrozenState] = [some_initial(number) for number in range(4)]
    for _ in range(150):
        server: StateStore = chance.choice(servers)
        name, other, owner = chance.choice("abcd"), chance.choice("abcd"), chance.choice(["ann", "bob", None])
        retention, frozen = Retention(owner=owner, ttl=chance.choice([None, 50.0, 500.0])), chance.choice(values)
        kind = chance.choice(["put", "put", "put", "get", "get", "set", "fork", "move", "delete", "wait"])
        if kind == "wait":
            clock.now += 30
            let_pass(store, 30, *servers)
            continue
        if kind == "set":
            mine, theirs = await plain.find(name), await server.find(name)
            assert describe(mine) == describe(theirs)
            if mine is not None and theirs is not None:
                expected = await outcome(lambda: plain.compare_and_set(mine, frozen, source="test"))  # noqa: B023
                found = await outcome(lambda: server.compare_and_set(theirs, frozen, source="test"))  # noqa: B023
                assert found == expected
            continue

        def call(at: StateStore) -> Awaitable[object]:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "put": lambda: at.put(name, frozen, retention, source="test"),  # noqa: B023
                "get": lambda: at.get(name),  # noqa: B023
                "fork": lambda: at.fork(name, [other], retention),  # noqa: B023
                "move": lambda: at.move(name, other, retention),  # noqa: B023
                "delete": lambda: at.delete(name),  # noqa: B023
            }
            return calls[kind]()  # noqa: B023

        expected = await outcome(lambda: call(plain))
        assert await outcome(lambda at=server: call(at)) == expected  # type: ignore[misc]
        listings = [await at.list() for at in (plain, *servers)]
        for listing in listings[1:]:
            assert sorted(map(str, describe(listing.entries))) == sorted(map(str, describe(listings[0].entries)))  # type: ignore[call-overload]
            assert listing.num_bytes == listings[0].num_bytes


async def test_a_state_with_a_lora_is_shared_with_its_pairs(fleet: Fleet) -> None:
    one, other = fleet.server(), fleet.server()
    rows = np.arange(16, dtype=np.float32).reshape(2, 8)
    lora = freeze_lora({"blocks.0.att.key.weight": (rows, rows.T)}, "test")
    made = await one.put("poet", freeze_state(some_state(), SHAPE, "test", lora=lora), LEASED, source="test")
    found = await other.get("poet")
    assert found.frozen.digest == made.frozen.digest
    assert found.frozen.lora is not None
    assert found.frozen.lora.digest == lora.digest
    assert [list(map(np.ndarray.tolist, pair)) for pair in found.frozen.lora.pairs.values()] == [
        [rows.tolist(), rows.T.tolist()]
    ]


async def test_a_change_that_can_not_be_described_leaves_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    server = fleet.server()
    await put(server, "before")
    with monkeypatch.context() as patched:
        patched.setattr(StoreReplica, "pending", lambda replica: 1 / 0 if replica.table.changes() else None)
        with pytest.raises(ZeroDivisionError):
            await put(server, "phantom", 1)
    assert await names(server) == ["before"]
