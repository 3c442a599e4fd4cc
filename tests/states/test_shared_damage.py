"""Values in a store may be damaged anywhere: they count as missing, and nothing else is affected."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import pytest

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.named.store import StateStore
from rnn_engine_states.shared.client import StoreClient
from rnn_engine_states.shared.config import StoreUrl
from rnn_engine_states.shared.table import SharedTable
from tests.support.named_states import FINGERPRINT, make_states, some_initial
from tests.support.shared_caches import SharingServer, serving
from tests.support.store_server import StoreServer
from tests.support.toy_states import same

Damage: TypeAlias = Callable[[bytes, random.Random], bytes]
Direct: TypeAlias = Any  # a client of the store; its annotations lack bytes

PROMPT = list(range(1, 21))
OWNER = Retention(owner="ann", ttl=600)


def flipped(value: bytes, chance: random.Random) -> bytes:
    if not value:
        return b"\x80"
    at = chance.randrange(len(value))
    return value[:at] + bytes([value[at] ^ 1 << chance.randrange(8)]) + value[at + 1 :]


def no_text(value: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(value) + 1)
    return value[:at] + b"\xff" + value[at + 1 :]


def cut(value: bytes, chance: random.Random) -> bytes:
    return value[: chance.randrange(len(value) + 1)]


DAMAGES: dict[str, Damage] = {
    "flipped": flipped,
    "no text": no_text,
    "cut": cut,
    "empty": lambda value, chance: b"",
    "deep": lambda value, chance: b"[" * 100_000,
    "object": lambda value, chance: b"{}",
    "list": lambda value, chance: b"[1]",
    "not finite": lambda value, chance: b"nan",
    "large": lambda value, chance: b"9" * 400,
    "negative": lambda value, chance: b"-5",
    "nul": lambda value, chance: b"\0",
}


def damage_hash(client: Direct, key: bytes, change: Callable[[bytes], bytes]) -> None:
    for name, value in client.hgetall(key).items():
        client.hset(key, name, change(value))


def damage_names_of_hash(client: Direct, key: bytes, change: Callable[[bytes], bytes]) -> None:
    for name, value in client.hgetall(key).items():
        client.hdel(key, name)
        client.hset(key, change(name), value)


def damage_members(client: Direct, key: bytes, change: Callable[[bytes], bytes]) -> None:
    for member, score in client.zrange(key, 0, -1, withscores=True):
        client.zrem(key, member)
        client.zadd(key, {change(member): score})


def damage_scores(client: Direct, key: bytes, _: Callable[[bytes], bytes]) -> None:
    for number, member in enumerate(client.zrange(key, 0, -1)):
        client.zadd(key, {member: (float("inf"), float("-inf"), 1e300)[number % 3]})


def damage_list(client: Direct, key: bytes, change: Callable[[bytes], bytes]) -> None:
    for number, value in enumerate(client.lrange(key, 0, -1)):
        client.lset(key, number, change(value))


def damage_string(client: Direct, key: bytes, change: Callable[[bytes], bytes]) -> None:
    client.set(key, change(client.get(key)), keepttl=True)


PLACES = {
    b"hash": (damage_hash, damage_names_of_hash),
    b"zset": (damage_members, damage_scores),
    b"list": (damage_list,),
    b"string": (damage_string,),
}


def damage(store: StoreServer, key: bytes, place: int, kind: str, chance: random.Random) -> bool:
    """Damage one place of a key's value; return False if it has no such place."""
    client: Direct
    with store.client() as client:
        places: tuple[Any, ...] = PLACES[client.type(key)]
        if place < len(places):
            places[place](client, key, lambda value: DAMAGES[kind](value, chance))
        return place < len(places)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path_factory.mktemp("store"))
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def _quiet(store: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with store.client() as client:
        client.flushall()


@pytest.fixture
def client(store: StoreServer) -> Iterator[StoreClient]:
    client = StoreClient(StoreUrl.parse(store.url), 30.0)
    yield client
    client.close()


def named_states(client: StoreClient) -> StateStore:
    own = make_states(model=FINGERPRINT).table
    return StateStore(SharedTable(own, client, FINGERPRINT, capacity=1 << 20, quota=Quota()))


async def answered(call: Awaitable[object]) -> None:
    """Await a call. It may raise the error for a missing state, or for a name that is taken."""
    try:
        await call
    except (NotFoundError, InvalidRequestError):
        return


@pytest.mark.parametrize("kind", DAMAGES)
async def test_names_that_are_damaged_anywhere_fail_no_other(
    store: StoreServer, client: StoreClient, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    chance, number = random.Random(kind), 0
    for place in (0, 1):
        for at in range(6):  # the five parts of the names, and values
            with store.client() as direct:
                direct.flushall()
            knows = named_states(client)
            await knows.put("a", some_initial(1), OWNER, source="test")
            await knows.put("b", some_initial(2), Retention(persistent=True), source="test")
            await knows.put("c", some_initial(3), OWNER, source="test")
            behind = named_states(client)
            await behind.list()
            await knows.put("d", some_initial(4), Retention(), source="test")
            keys = store.keys()
            assert len(keys) == 9
            parts = [key for key in keys if b":names:" in key]
            if not damage(store, [*parts, keys[-1]][at], place, kind, chance):
                continue
            for server in (named_states(client), behind, knows):
                number += 1
                await answered(server.list())
                for name in "abcd":
                    await answered(server.find(name))
                    await answered(server.get(name))
                await answered(server.delete("d"))
                new = await server.put(f"new{number}", some_initial(9), OWNER, source="test")
                for other in (server, named_states(client)):
                    got = await other.get(new.name)
                    assert same(got.frozen.state, some_initial(9).state)
                await answered(server.delete(new.name))
    assert number >= 3 * 6
    assert not caplog.records


@pytest.mark.parametrize("kind", DAMAGES)
def test_checkpoints_that_are_damaged_anywhere_cost_a_run(
    store: StoreServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(kind)
    with serving(store.url) as one, serving(store.url) as other:
        one.keep(PROMPT[:10])
        one.keep(PROMPT)
        for number, key in enumerate(store.keys()):
            for place in (0, 1):
                with store.client() as client:
                    if not client.exists(key) or not damage(store, key, place, kind, chance):
                        continue
                for server in (other, one):
                    assert server.found([*PROMPT, 5]) in (0, 10, 20)
                    server.cache.drop_all()
                prompt = [50 + number, 60 + place, *PROMPT]
                keep_anew(one, prompt)
                assert other.found([*prompt, 5]) == len(prompt)
                for tokens in (PROMPT[:10], PROMPT):
                    keep_anew(one, tokens)
        assert other.found([*PROMPT, 5]) == 20
    assert not caplog.records


def keep_anew(server: SharingServer, tokens: list[int]) -> None:
    server.keep(tokens)
    server.cache.drop_all()


def test_what_is_known_of_a_checkpoint_is_checked(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url) as other, store.client() as client:
        one.keep(PROMPT[:10])
        one.keep(PROMPT)
        [key] = store.keys("*:checkpoint:*:20")
        client.hset(key.decode(), "kind", "mark?")
        assert other.found([*PROMPT, 5]) == 10
        assert other.counters().unreadable == 1
        assert not client.exists(key)
        assert other.found([*PROMPT, 5]) == 10
        assert other.counters().unreadable == 1
        one.cache.drop_all()
        one.keep(PROMPT)
        assert other.found([*PROMPT, 5]) == 20
