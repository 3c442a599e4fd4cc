"""The engine through its public methods: many clients at once, clients that leave, a full queue, a model file."""

from __future__ import annotations

import asyncio
import gc
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidRequestError, ModelError, OverloadedError
from rnn_engine.interface import EngineLike, EngineStats
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started
from rnn_engine_states.cache.browse import TreeQuery
from rnn_engine_states.cache.cache import make_cache
from tests.support.clients import Heard, assert_heard, run_alone
from tests.support.engines import ENDLESS, GREEDY, HELLO, PATIENCE, TOKENIZER, ask, engine_of, listen, reach, running
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.gate import Gate
from tests.support.models import random_model, save_safetensors, tiny_shape


async def test_a_request_hears_its_events_in_order_and_then_the_end() -> None:
    async with running(FakeRunner(HELLO)) as engine:
        heard = await listen(engine, ask())
        assert heard.events[0] == Started(prompt_tokens=2, cached_tokens=0)
        assert heard.text == "Hello"
        assert heard.finished == Finished("stop", completion_tokens=6, seed=0, stop=0)
        assert engine.stats() == EngineStats(active=0, queued=0)


async def test_a_hundred_clients_at_once_hear_what_each_would_alone() -> None:
    logits = random_logits(TOKENIZER.size)
    requests = [
        GenerateRequest([1 + n % 5] * (1 + n % 40), max_tokens=1 + n % 9, sampling=SamplingParams(top_p=0.9, seed=n))
        for n in range(100)
    ]
    async with running(FakeRunner(logits), max_queued=100) as engine:
        heard = await asyncio.gather(*(listen(engine, request) for request in requests))
    for one, request in zip(heard, requests, strict=True):
        assert_heard(one, run_alone(request, logits, TOKENIZER.decode_bytes))


async def test_a_client_that_does_not_read_slows_nobody() -> None:
    async with running(FakeRunner(ENDLESS, num_slots=2)) as engine:
        slow = engine.generate(ask(max_tokens=30))
        await anext(slow)
        for _ in range(3):
            assert (await listen(engine, ask(max_tokens=30))).text == "x" * 30
        assert Heard([event async for event in slow]).text == "x" * 30


async def test_a_request_whose_reader_stalls_is_paused_until_it_reads_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.inboxes.MAX_UNREAD", 100)
    runner = FakeRunner(ENDLESS, num_slots=2)
    async with running(runner) as engine:
        slow = engine.generate(ask(max_tokens=500))
        await anext(slow)
        for _ in range(3):
            assert (await listen(engine, ask(max_tokens=300))).text == "x" * 300
        steps_of_slow = sum(run.slot == 0 for batch in runner.batches for run in batch)
        assert steps_of_slow < 300
        assert engine.stats() == EngineStats(active=1, queued=0)
        assert Heard([event async for event in slow]).text == "x" * 500


async def test_a_request_whose_deadline_comes_ends_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(FakeRunner(ENDLESS)) as engine:
        loop = asyncio.get_running_loop()
        deadline, call_at, come = loop.time() + 3600, loop.call_at, list[Callable[[], object]]()

        def note(when: float, callback: Callable[..., object], *values: object, **options: Any) -> TimerHandle:  # noqa: ANN401
            if when == deadline:
                come.append(partial(callback, *values))
            return call_at(when, callback, *values, **options)

        monkeypatch.setattr(loop, "call_at", note)
        events = engine.generate(replace(ask(max_tokens=10**6), deadline=deadline))
        first = [await anext(events) for _ in range(2)]
        come[0]()
        heard = Heard([*first, *[event async for event in events]])
        assert heard.finished.reason == "length"
        assert heard.text == "x" * heard.finished.completion_tokens


async def test_a_request_does_not_wait_longer_for_a_slot_than_it_may() -> None:
    parts = assemble(FakeRunner(ENDLESS, num_slots=1), TOKENIZER, model="fake", device="none", weights="f32")
    async with asyncio.timeout(PATIENCE), Engine(parts, queue_seconds=0.02) as engine:
        slow = engine.generate(ask(max_tokens=10**6))
        await anext(slow)
        with pytest.raises(OverloadedError, match="no slot became free within"):
            await listen(engine, ask())
        part_of_a_call = asyncio.create_task(anext(engine.generate(ask(), wait_for_room=True)))
        with pytest.raises(OverloadedError):
            await listen(engine, ask())
        assert not part_of_a_call.done()
        await slow.aclose()
        assert isinstance(await part_of_a_call, Started)


async def test_requests_that_are_all_paused_need_no_steps_and_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.inboxes.MAX_UNREAD", 20)
    runner = FakeRunner(ENDLESS, num_slots=1)
    cache = make_cache(runner.shape, "a model", runner)
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        slow = engine.generate(ask(max_tokens=10**6))
        await anext(slow)
        waiting = asyncio.create_task(listen(engine, ask(max_tokens=5)))
        questions_without_a_step = 0
        while questions_without_a_step < 20:  # a busy worker steps between any two questions
            steps = len(runner.batches)
            await engine.cache_tree(TreeQuery())
            questions_without_a_step = questions_without_a_step + 1 if len(runner.batches) == steps else 0
        assert len(runner.batches) > 20
        await slow.aclose()
        assert (await waiting).text == "xxxxx"


@pytest.mark.parametrize("events_read", [1, 2])
async def test_a_client_that_leaves_frees_its_slot(events_read: int) -> None:
    async with running(FakeRunner(ENDLESS, num_slots=1)) as engine:
        async with aclosing(engine.generate(ask(max_tokens=10**6))) as events:
            for _ in range(events_read):
                await anext(events)
        assert (await listen(engine, ask(max_tokens=3))).text == "xxx"


async def test_the_slot_is_free_within_one_step_whether_in_prompt_or_at_decode() -> None:
    for steps in (1, 3, 5):  # 70 tokens take three steps of 32
        gate = Gate()
        runner = FakeRunner(ENDLESS, num_slots=2, on_step=gate)
        async with running(runner) as engine:
            leaver = asyncio.create_task(listen(engine, ask("p" * 70, max_tokens=10**6)))
            await reach(lambda: len(runner.batches) == 1)  # noqa: B023
            gate.let(steps)
            await reach(lambda: len(runner.batches) == 1 + steps)  # noqa: B023
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
            gate.open()  # the step that was running when the client left
            await listen(engine, ask(max_tokens=5))
            assert all(len(batch) == 1 for batch in runner.batches[1 + steps :])
            assert engine.stats().active == 0


async def test_a_queued_request_whose_client_leaves_never_runs() -> None:
    gate = Gate()
    runner = FakeRunner(HELLO, num_slots=1, on_step=gate)
    async with running(runner) as engine:
        first = asyncio.create_task(listen(engine, ask("A")))
        await reach(lambda: len(runner.batches) == 1)
        leaver = asyncio.create_task(listen(engine, ask("B")))
        last = asyncio.create_task(listen(engine, ask("C")))
        await reach(lambda: engine.stats() == EngineStats(active=1, queued=2))
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        gate.open()
        assert [(await one).text for one in (first, last)] == ["Hello", "Hello"]
    run = {token for batch in runner.batches for one in batch for token in one.tokens}
    assert TOKENIZER.encode("B")[0] not in run


async def test_an_iteration_that_never_begins_queues_nothing() -> None:
    runner = FakeRunner(HELLO)
    async with running(runner) as engine:
        engine.generate(ask())
        gc.collect()
        await listen(engine, ask(max_tokens=1))
    assert len(runner.batches) == 1


async def test_a_bad_request_is_refused_at_the_call() -> None:
    async with running(FakeRunner(HELLO)) as engine:
        with pytest.raises(InvalidRequestError, match=r"prompt: \[\] is not allowed; expected at least one token"):
            engine.generate(GenerateRequest([]))
        with pytest.raises(InvalidRequestError, match="prompt token 1: 257 is not allowed"):
            engine.generate(GenerateRequest([1, 257]))
        for stop in ("", b"", ["a", ""], [1], None, "\ud800"):
            with pytest.raises(InvalidRequestError, match=r"stop: .* is not allowed; expected a text or"):
                engine.generate(GenerateRequest([1], stop=stop))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="logprobs: 21 is not allowed; expected a number from 0 to 20"):
            engine.generate(GenerateRequest([1], logprobs=21))


async def test_a_full_queue_refuses_until_there_is_room() -> None:
    gate = Gate()
    async with running(FakeRunner(HELLO, num_slots=1, on_step=gate), max_queued=1) as engine:
        accepted = [asyncio.create_task(listen(engine, ask())) for _ in range(2)]
        await reach(lambda: engine.stats() == EngineStats(active=1, queued=1))
        with pytest.raises(OverloadedError, match="expected at most 1 running and 1 queued") as refusal:
            await listen(engine, ask())
        assert refusal.value.retry_after > 0
        gate.open()
        assert [(await one).text for one in accepted] == ["Hello", "Hello"]
        assert (await listen(engine, ask())).text == "Hello"


@pytest.mark.parametrize(
    ("marked", "cached"), [(False, [0, 1280, 1400, 1400, 1400]), (True, [0, 1400, 1400, 1400, 1400])]
)
async def test_short_questions_after_a_long_shared_text_go_on_from_its_end(marked: bool, cached: list[int]) -> None:
    runner = FakeRunner(HELLO, max_tokens=256)
    cache = make_cache(runner.shape, "a model", runner)
    text = "Long. " * 233 + "::"
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        for question, saved in zip(("Who??", "Do I?", "Am I?", "Is it", "Can I"), cached, strict=True):
            request = replace(ask(text + question), checkpoint_positions=[len(text)] if marked else [])
            assert (await listen(engine, request)).events[0] == Started(len(text) + 5, saved)


async def test_text_becomes_tokens_and_tokens_text() -> None:
    async with running(FakeRunner(HELLO)) as engine:
        assert engine.tokenize("é") == [0xC3 + 1, 0xA9 + 1]
        assert engine.detokenize([0xC3 + 1, 0, 0xA9 + 1]) == "é".encode()
        with pytest.raises(InvalidRequestError, match="token 1: 257 is not allowed; expected a token id from 0 to 256"):
            engine.detokenize([1, 257])


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return save_safetensors(random_model(tiny_shape(vocab=50), seed=1), tmp_path / "tiny.safetensors")


async def tokens_of(engine: EngineLike, prompt: Sequence[int]) -> list[int]:
    request = GenerateRequest(prompt, max_tokens=5, stop_tokens=(), sampling=GREEDY)
    return [info.token for info in (await listen(engine, request)).tokens]


async def test_a_model_file_is_loaded_and_served(model_path: Path) -> None:
    async with await Engine.load(model_path, LoadSettings("cpu"), num_slots=2) as engine:
        assert (engine.info.model, engine.info.tokenizer) == ("tiny", "none")
        assert (engine.info.device, engine.info.weights, engine.info.num_slots) == ("cpu", "f32", 2)
        assert engine.info.shape == tiny_shape(vocab=50)
        prompts = [[1, 2, 3], [4] * 90, [5, 6], [1, 2, 3]]
        together = await asyncio.gather(*(tokens_of(engine, prompt) for prompt in prompts))
        assert together == [await tokens_of(engine, prompt) for prompt in prompts]
        assert together[0] == together[3] != together[1]
    async with await Engine.load(model_path, LoadSettings("cpu"), name="mine", num_slots=1) as engine:
        assert engine.info.model == "mine"
        assert await tokens_of(engine, [1, 2, 3]) == together[0]


async def test_a_missing_model_file_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.safetensors"):
        await Engine.load(tmp_path / "missing.safetensors", LoadSettings("cpu"))
