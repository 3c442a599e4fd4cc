"""A server's index of a shared store has a bound of its own, and gives way before the server's own states."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from rnn_engine_states.cache.cache import Match
from rnn_engine_states.cache.tiers.shared import SharedTier
from tests.support.cache_books import check_cache
from tests.support.shared_caches import SharingServer, serving
from tests.support.store_server import StoreServer
from tests.support.toy_states import look_up

PROMPT = list(range(1, 21))
VOCAB = 5000  # 20 kB of logits: a state is some 21 kB


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path_factory.mktemp("store"), "--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru")
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def _empty(store: StoreServer) -> None:
    with store.client() as client:
        client.flushall()
        client.config_set("maxmemory", 1 << 30)


def leave_room(store: StoreServer, num_bytes: int) -> int:
    """Bound the store's memory to `num_bytes` more than it uses now; return the bound."""
    with store.client() as client:
        bound: int = client.info("memory")["used_memory"] + num_bytes  # type: ignore[index]
        client.config_set("maxmemory", bound)
    return bound


def test_known_copies_that_fill_the_store_give_way_to_newer_ones(store: StoreServer) -> None:
    capacity = leave_room(store, 500_000)
    prompts = [[number, *PROMPT] for number in range(capacity // 21_000 + 50)]
    with serving(store.url, vocab=VOCAB) as one, serving(store.url, vocab=VOCAB, host=1 << 20) as other:
        own = [[1000 + number, *PROMPT] for number in range(10)]
        for prompt in own:
            assert other.keep(prompt)
        for prompt in prompts:
            one.keep(prompt)
            other.ask(prompt)
            check_cache(other.cache)
        assert other.cache.stats().tiers[-1].copies > 10
        assert [look_up(other.cache, prompt).saved for prompt in own] == [21] * 10


def test_what_is_known_of_the_store_gives_way_before_own_states(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url, host=1 << 20, index_capacity=200_000) as other:
        own = [[1000 + number, *PROMPT] for number in range(40)]
        for prompt in own:
            assert other.keep(prompt)
        for number in range(400):
            one.keep([number, *PROMPT])
            other.ask([number, *PROMPT])
        check_cache(other.cache)
        stats = other.cache.stats()
        assert stats.index_bytes <= stats.index_capacity == 200_000
        assert [look_up(other.cache, prompt).saved for prompt in own] == [21] * 40
        assert 0 < stats.tiers[-1].copies <= 60  # half of the index


def test_a_copy_that_is_larger_than_the_store_may_be_is_not_taken_in(store: StoreServer) -> None:
    capacity = leave_room(store, 10_000_000)
    with serving(store.url) as one, serving(store.url) as other:
        one.keep(PROMPT)
        [key] = store.keys("*:checkpoint:*[0-9]")
        with store.client() as client:
            client.hset(key.decode(), "size", str(capacity + 1))
        assert other.found([*PROMPT, 5]) == 0
        check_cache(other.cache)
        assert other.cache.stats().tiers[-1].copies == 0


def test_a_copy_that_can_not_be_taken_in_leaves_nothing_half_made(
    store: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with serving(store.url) as one, serving(store.url) as other:
        one.keep(PROMPT)
        monkeypatch.setattr(SharedTier, "adopt", fail)
        with pytest.raises(MemoryError):
            other.ask([*PROMPT, 5])
        check_cache(other.cache)
        monkeypatch.undo()
        assert other.found([*PROMPT, 5]) == 20


def test_copies_in_use_are_not_forgotten_for_newer_ones(store: StoreServer) -> None:
    with serving(store.url) as one, serving(store.url, index_capacity=12_000) as other:
        for number in range(6):
            one.keep([number, *PROMPT])
        held = []
        for number in range(6):
            other.ask([number, *PROMPT])
            held.append(look_up(other.cache, [number, *PROMPT]))
            check_cache(other.cache)
        assert held[0].saved == 21
        assert held[-1].saved == 0  # there was no room for it
        for match in held:
            other.cache.release(match)
        other.ask([5, *PROMPT])
        check_cache(other.cache)
        assert look_up(other.cache, [5, *PROMPT]).saved == 21


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_of_two_servers_with_little_room(store: StoreServer, seed: int) -> None:
    chance = random.Random(seed)
    held: deque[tuple[SharingServer, Match]] = deque()
    room: dict[str, Any] = {"vocab": 500, "host": 12_000, "index_capacity": 20_000}
    with serving(store.url, **room) as one, serving(store.url, **room) as other:
        for server in (one, other):
            server.cache.tiers[-1].queue.capacity = 9_000  # less than any store takes
        for _ in range(400):
            server = chance.choice((one, other))
            prompt = tokens_of("".join(chance.choices("abc", k=chance.randint(1, 3))))
            kind = chance.choices(("keep", "find", "hold", "drop_all", "empty"), (10, 10, 10, 0.1, 0.1))[0]
            if kind == "keep":
                server.keep(prompt, logits=chance.random() < 0.5)
            elif kind == "find":
                server.found(prompt)
            elif kind == "hold":
                server.ask(prompt)
                held.append((server, look_up(server.cache, prompt)))
            elif kind == "drop_all":
                server.cache.drop_all()
            else:
                with store.client() as client:
                    client.flushall()
            while len(held) > 4:
                holder, match = held.popleft()
                holder.cache.release(match)
            check_cache(one.cache)
            check_cache(other.cache)


def tokens_of(word: str) -> list[int]:
    return [100 * ord(letter) + number for letter in word for number in range(40)]
