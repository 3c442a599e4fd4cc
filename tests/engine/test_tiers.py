"""The engine and the tiers of its states: slots of the device, host memory, files."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, ModelError, StateError
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.operations.naming import create_state
from rnn_engine.requests import Event, GenerateRequest, SamplingParams, Started, TextDelta, TokenInfo
from rnn_engine.types import F32
from rnn_engine_states.cache.browse import Position, TreeQuery
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig, CacheStats, DiskConfig
from rnn_engine_states.cache.tiers.tier import SlotPool
from rnn_engine_states.files.exchange import CACHE_LOCK, OwnedFolder
from rnn_engine_states.named.entry import Retention
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, scripted_logits
from tests.support.models import random_model, save_safetensors, tiny_shape

SHAPE = tiny_shape(vocab=50)
STATE = sum(values.nbytes for values in SHAPE.initial_state().values())
ROOM_FOR_TWO = 2 * (STATE + 4 * SHAPE.vocab_size)
TOKENIZER = ByteTokenizer()
PROMPT = list(range(40))


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_safetensors(random_model(SHAPE, seed=1), tmp_path_factory.mktemp("model") / "tiny.safetensors", "f32")


async def load(model_path: Path, cache: CacheConfig | None) -> Engine:
    return await Engine.load(model_path, LoadSettings("cpu"), num_slots=2, cache=cache)


async def ask(engine: Engine, prompt: Sequence[int]) -> tuple[int, tuple[TokenInfo, ...]]:
    """Return the number of cached tokens, and the tokens of the answer."""
    request = GenerateRequest(
        prompt, max_tokens=4, stop_tokens=(), sampling=SamplingParams(temperature=0.0), logprobs=3
    )
    events: list[Event] = [event async for event in engine.generate(request)]
    started = events[0]
    assert isinstance(started, Started)
    return started.cached_tokens, tuple(
        info for event in events if isinstance(event, TextDelta) for info in event.tokens
    )


def copies(engine: Engine) -> dict[str, int]:
    return {tier.tier: tier.copies for tier in stats_of(engine).tiers}


async def positions(engine: Engine, limit: int = 10) -> list[Position]:
    """Return the cached positions that have the most hits, by length."""
    tree = await engine.cache_tree(TreeQuery(limit=limit, by_hits=True))
    return sorted((node.position for node in tree.nodes), key=lambda position: position.length)


async def tiers_of(engine: Engine, length: int) -> set[str]:
    """Return the tiers that have the state after `length` tokens."""
    return next(set(position.sizes) for position in await positions(engine) if position.length == length)


def stats_of(engine: Engine) -> CacheStats:
    stats = engine.cache_stats()
    assert stats is not None
    return stats


def assert_close(heard: Sequence[TokenInfo], expected: Sequence[TokenInfo]) -> None:
    assert [info.token for info in heard] == [info.token for info in expected]
    for one, other in zip(heard, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


class CountingRunner(FakeRunner):
    """A runner that counts the states read back."""

    states_read = 0

    def read_state(self, slot: int) -> dict[str, F32]:
        self.states_read += 1
        return super().read_state(slot)


async def test_slabs_are_slots_in_which_no_sequence_runs_and_nothing_is_read_back_for_them() -> None:
    runner = CountingRunner(scripted_logits(TOKENIZER.size, TOKENIZER.encode("Hi")), num_slots=5)
    cache = make_cache(runner.shape, "model", runner, CacheConfig(host_capacity=0), SlotPool(runner, 2, 3))
    prompts = [TOKENIZER.encode(text) for text in ("first", "second", "third", "fourth")]
    parts = assemble(runner, TOKENIZER, model="m", device="d", weights="w", num_slots=2, cache=cache)
    async with Engine(parts) as engine:
        assert engine.info.num_slots == 2
        await asyncio.gather(*(ask(engine, prompt) for prompt in prompts))
        assert copies(engine)["device"] == 3
        assert max(len(batch) for batch in runner.batches) == 2
        assert {run.slot for batch in runner.batches for run in batch} == {0, 1}
        cached, _ = await ask(engine, prompts[-1])
        assert cached == len(prompts[-1])
    assert runner.states_read == 0


async def test_results_are_the_same_from_every_tier(model_path: Path, tmp_path: Path) -> None:
    config = CacheConfig(
        device_capacity=2 * STATE, host_capacity=ROOM_FOR_TWO, disk=DiskConfig(tmp_path, background_bytes=0)
    )
    async with await load(model_path, None) as engine:
        assert engine.cache_stats() is None
        _, expected = await ask(engine, PROMPT)
    async with await load(model_path, config) as engine:
        assert engine.info.num_slots == 2
        assert_close((await ask(engine, PROMPT))[1], expected)
        others = ([number] * 100 for number in range(SHAPE.vocab_size))
        for tier in ("device", "host", "disk"):
            while await tiers_of(engine, len(PROMPT)) != {tier}:
                await ask(engine, next(others))
            cached, heard = await ask(engine, PROMPT)
            assert cached == len(PROMPT)
            assert_close(heard, expected)
        assert [tier.hits for tier in stats_of(engine).tiers] == [1, 1, 1]


async def test_states_are_found_again_after_a_restart(model_path: Path, tmp_path: Path) -> None:
    config = CacheConfig(disk=DiskConfig(tmp_path / "made" / "here"))
    async with await load(model_path, config) as engine:
        cached, expected = await ask(engine, PROMPT)
        assert cached == 0
        assert copies(engine)["disk"] == 0
    async with await load(model_path, config) as engine:
        assert copies(engine)["disk"] == 2
        cached, heard = await ask(engine, PROMPT)
        assert cached == len(PROMPT)
        assert_close(heard, expected)


async def test_a_folder_belongs_to_one_engine_at_a_time(model_path: Path, tmp_path: Path) -> None:
    config = CacheConfig(disk=DiskConfig(tmp_path))
    refusal = f"cache folder {tmp_path}: another process uses it; expected a folder that no other process uses"
    async with await load(model_path, config):
        with pytest.raises(StateError, match=refusal):
            await load(model_path, config)
    with pytest.raises(ModelError):
        await load(tmp_path / "missing.safetensors", config)
    with pytest.raises(
        StateError, match=r"tiny\.safetensors: File exists; expected a folder that the server can write to"
    ):
        await load(model_path, CacheConfig(disk=DiskConfig(model_path)))
    OwnedFolder(tmp_path, "cache folder", CACHE_LOCK).release()


async def test_states_are_on_disk_soon_after_they_were_kept(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnn_engine_states.cache.cache._WRITE_BEHIND_SECONDS", 0.001)
    config = CacheConfig(disk=DiskConfig(tmp_path, write_after=0.0))
    async with await load(model_path, config) as engine:
        await ask(engine, PROMPT)
        async with asyncio.timeout(60):
            while len(list(tmp_path.glob("*.state"))) < 2:  # of the prompt and of the answer
                await asyncio.sleep(0.001)
        assert copies(engine)["disk"] == 2


async def test_a_folder_of_states_belongs_to_one_engine_at_a_time(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states = StateSettings(folder=tmp_path)
    partial = tmp_path / f"{uuid.uuid4()}.state.{uuid.uuid4().hex}.partial"
    async with await Engine.load(model_path, LoadSettings("cpu"), states=states) as engine:
        partial.write_bytes(b"half")  # is being written
        with pytest.raises(StateError, match=f"folder of states {tmp_path}: another process uses it"):
            await Engine.load(model_path, LoadSettings("cpu"), states=states)
        assert partial.exists()
        async with await load(model_path, CacheConfig(disk=DiskConfig(tmp_path))):
            assert partial.exists()  # a cache may be in the folder, too
        ran = await create_state(engine, "kept", [1, 2], Retention(persistent=True))
    monkeypatch.setattr("os.access", lambda *_: False)
    async with await Engine.load(model_path, LoadSettings("cpu"), states=states) as engine:
        assert (await engine.states.get("kept")).frozen.digest == ran[0].frozen.digest
    assert "is read-only: no state can be kept in it" in caplog.text
    assert not partial.exists()


async def test_dropping_makes_the_next_prompt_run(model_path: Path) -> None:
    async with await load(model_path, CacheConfig()) as engine:
        await ask(engine, PROMPT)
        assert [position.length for position in await positions(engine)] == [40, 43]
        assert [position.length for position in await positions(engine, 1)] == [43]
        assert await engine.drop_cache() == 2
        assert await positions(engine) == []
        assert (await ask(engine, PROMPT))[0] == 0


async def test_an_engine_without_a_cache_has_nothing_to_show(model_path: Path) -> None:
    nothing = CacheConfig(device_capacity=0, host_capacity=0)
    for config in (None, nothing):
        async with await load(model_path, config) as engine:
            await ask(engine, PROMPT)
            assert (await ask(engine, PROMPT))[0] == 0
            assert engine.cache_stats() is None
            assert await positions(engine) == []
            assert await engine.drop_cache() == 0


async def test_a_question_that_comes_with_the_end_hears_of_it(model_path: Path) -> None:
    engine = await load(model_path, CacheConfig())
    closing = asyncio.create_task(engine.close())
    question = asyncio.create_task(positions(engine))
    await closing
    with pytest.raises(EngineClosedError):
        await question
    with pytest.raises(EngineClosedError):
        await engine.drop_cache()
