"""Engines that share a store: the same tokens as without it, and no request fails if the store does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.operations.naming import create_state
from rnn_engine.requests import GenerateRequest, SamplingParams, Started, TextDelta
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.named.entry import NamedState, Retention
from rnn_engine_states.shared.config import StoreConfig, StoreUrl
from tests.support.models import random_model, save_safetensors, tiny_shape
from tests.support.store_server import SlowProxy, StoreServer

_NO_FOLDER = StateSettings()
PROMPTS = [[number, *range(1, 45), *range(number % 3)] for number in range(12)]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_model(tiny_shape(vocab=50), seed=1)
    return save_safetensors(model, tmp_path_factory.mktemp("model") / "tiny.safetensors", "f32")


@asynccontextmanager
async def running(
    model_path: Path, url: str | None = None, timeout: float = 30.0, states: StateSettings = _NO_FOLDER
) -> AsyncIterator[Engine]:
    store = None
    if url is not None:
        store = StoreConfig(StoreUrl.parse(url), timeout=timeout, write_after=0.0, min_tokens=8)
    cache = CacheConfig(device_capacity=0, store=store)
    async with await Engine.load(model_path, LoadSettings("cpu"), num_slots=2, cache=cache, states=states) as engine:
        yield engine


async def ask(engine: Engine, prompt: Sequence[int], start: NamedState | None = None) -> tuple[int, list[int]]:
    """Return the number of cached tokens, and the drawn tokens."""
    request = GenerateRequest(
        prompt,
        max_tokens=5,
        stop_tokens=(),
        sampling=SamplingParams(temperature=0.0),
        initial_state=None if start is None else start.frozen.for_request,
    )
    events = [event async for event in engine.generate(request)]
    assert isinstance(events[0], Started)
    return events[0].cached_tokens, [
        info.token for event in events if isinstance(event, TextDelta) for info in event.tokens
    ]


async def tokens_without(model_path: Path) -> list[list[int]]:
    async with running(model_path) as engine:
        return [(await ask(engine, prompt))[1] for prompt in PROMPTS]


async def test_what_one_engine_has_run_the_other_does_not(model_path: Path, tmp_path: Path) -> None:
    expected = await tokens_without(model_path)
    store = StoreServer(tmp_path)
    try:
        async with running(model_path, store.url) as one:
            for prompt, tokens in zip(PROMPTS, expected, strict=True):
                assert (await ask(one, prompt))[1] == tokens
        async with running(model_path, store.url) as other:
            heard = [await ask(other, prompt) for prompt in PROMPTS]
            assert [tokens for _, tokens in heard] == expected
            assert [cached for cached, _ in heard] == [len(prompt) for prompt in PROMPTS]
            stats = other.cache_stats()
            assert stats is not None
            assert stats.store is not None
            assert stats.store.read_bytes > 0
    finally:
        store.kill()


async def test_a_store_that_is_killed_or_slow_fails_no_request(model_path: Path, tmp_path: Path) -> None:
    expected = await tokens_without(model_path)
    store = StoreServer(tmp_path)
    proxy = SlowProxy(store.port, 0.0)
    try:
        async with running(model_path, proxy.url, timeout=0.1) as engine:
            for number, (prompt, tokens) in enumerate(zip(PROMPTS, expected, strict=True)):
                if number == 4:
                    store.kill()
                if number == 8:
                    proxy.delay = 0.2
                    store.start()
                assert (await ask(engine, prompt))[1] == tokens
    finally:
        proxy.close()
        store.kill()


async def test_a_beginning_that_prompts_share_is_run_in_full_by_two_engines_at_most(
    model_path: Path, tmp_path: Path
) -> None:
    store = StoreServer(tmp_path)
    shared = [number % 43 for number in range(300)]
    try:
        heard = []
        for number in range(4):
            async with running(model_path, store.url) as engine:
                cached, tokens = await ask(engine, [*shared, number, 44, number])
                heard.append(cached)
            async with running(model_path) as engine:
                assert (await ask(engine, [*shared, number, 44, number]))[1] == tokens
        assert heard == [0, 0, 256, 256]
    finally:
        store.kill()


async def test_one_who_leaves_while_the_store_is_asked_leaves_nothing(model_path: Path, tmp_path: Path) -> None:
    store = StoreServer(tmp_path)
    proxy = SlowProxy(store.port, 0.1)
    try:
        async with running(model_path, proxy.url) as engine:
            leaving = [asyncio.create_task(ask(engine, prompt)) for prompt in PROMPTS[:3]]
            while engine.stats().queued < 3:
                await asyncio.sleep(0)
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            await ask(engine, PROMPTS[3])
            assert (engine.stats().active, engine.stats().queued) == (0, 0)
    finally:
        proxy.close()
        store.kill()


async def test_a_store_that_is_200_ms_away_serves_whoever_waits_for_it(model_path: Path, tmp_path: Path) -> None:
    [expected, *_] = await tokens_without(model_path)
    store = StoreServer(tmp_path)
    proxy = SlowProxy(store.port, 0.1)  # there, and back
    try:
        async with running(model_path, store.url) as one:
            await ask(one, PROMPTS[0])
        async with running(model_path, proxy.url) as other:
            assert await ask(other, PROMPTS[0]) == (len(PROMPTS[0]), expected)
    finally:
        proxy.close()
        store.kill()


async def test_a_store_that_is_killed_again_and_again_under_load_costs_no_token(
    model_path: Path, tmp_path: Path
) -> None:
    expected = dict(zip(map(tuple, PROMPTS), await tokens_without(model_path), strict=True))
    store = StoreServer(tmp_path)
    served = 0

    async def load_up(engine: Engine, seed: int) -> None:
        nonlocal served
        chance = random.Random(seed)
        while not over.is_set():
            prompt = chance.choice(PROMPTS)
            assert (await ask(engine, prompt))[1] == expected[tuple(prompt)]
            served += 1
            if chance.random() < 0.3:
                await engine.drop_cache()

    over = asyncio.Event()
    try:
        async with running(model_path, store.url, timeout=0.2) as one, running(model_path, store.url) as other:
            clients = [asyncio.create_task(load_up(engine, seed)) for seed, engine in enumerate((one, one, other))]
            for _ in range(5):
                for act in (store.kill, store.start):
                    await asyncio.to_thread(act)
                    before = served
                    while served < before + 6 and not any(client.done() for client in clients):
                        await asyncio.sleep(0.001)
            over.set()
            await asyncio.gather(*clients)
            counters = [stats.store for stats in (one.cache_stats(), other.cache_stats()) if stats is not None]
            assert all(counter is not None and counter.circuit_openings > 0 for counter in counters)
    finally:
        store.kill()


async def test_a_state_that_was_named_at_one_engine_goes_on_at_the_other(model_path: Path, tmp_path: Path) -> None:
    store = StoreServer(tmp_path)
    try:
        async with running(model_path, store.url) as one, running(model_path, store.url) as other:
            await create_state(one, "talk", PROMPTS[0], Retention())
            _, expected = await ask(one, PROMPTS[1], await one.states.get("talk"))
            assert (await ask(other, PROMPTS[1], await other.states.get("talk")))[1] == expected
            await other.states.fork("talk", ["branch"], Retention(persistent=True))
            assert {entry.name for entry in (await one.states.list()).entries} == {"talk", "branch"}
            for name in ("talk", "branch"):
                await other.states.delete(name)
            assert (await one.states.list()).entries == ()
    finally:
        store.kill()


async def test_with_a_folder_of_states_names_stay_at_each_engine(model_path: Path, tmp_path: Path) -> None:
    store = StoreServer(tmp_path)
    try:
        settings = StateSettings(folder=tmp_path / "states")
        async with running(model_path, store.url, states=settings) as one, running(model_path, store.url) as other:
            await create_state(one, "talk", PROMPTS[0], Retention(persistent=True))
            assert (await other.states.list()).entries == ()
    finally:
        store.kill()
