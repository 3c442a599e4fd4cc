"""The engine through its public methods: many clients at once, clients that leave, failures, the end."""

from __future__ import annotations

import asyncio
import gc
import threading
from asyncio import TimerHandle
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import (
    EngineClosedError,
    InvalidRequestError,
    ModelError,
    OverloadedError,
    StepError,
)
from rnn_engine.interface import EngineLike, EngineStats
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.runner import load_runner
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import Event, Finished, GenerateRequest, SamplingParams, Started
from rnn_engine.scheduler import EAGER, BatchingPolicy, Scheduler, Worker
from rnn_engine.scheduler.batching import Adaptive
from rnn_engine.types import InitialState, Runner
from states.cache.cache import StateCache
from states.cache.make import make_cache
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Heard, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits, scripted_logits
from tests.support.gate import Gate
from tests.support.models import random_model, save_safetensors, tiny_shape

TOKENIZER = ByteTokenizer()
GREEDY = SamplingParams(temperature=0.0, seed=0)
HELLO = scripted_logits(TOKENIZER.size, TOKENIZER.encode("Hello"))
ENDLESS = scripted_logits(TOKENIZER.size, [ord("x") + 1] * 1000)
PATIENCE = 30.0  # seconds until a test that waits in vain fails


@asynccontextmanager
async def running(runner: Runner, max_queued: int = 64) -> AsyncGenerator[Engine, None]:
    async with asyncio.timeout(PATIENCE), engine_of(runner, max_queued) as engine:
        yield engine


def engine_of(
    runner: Runner, max_queued: int = 64, cache: StateCache | None = None, policy: BatchingPolicy = EAGER
) -> Engine:
    parts = assemble(runner, TOKENIZER, model="fake", device="none", weights="f32", cache=cache)
    return Engine(parts, max_queued=max_queued, policy=policy)


def broken(*_args: object) -> None:
    raise RuntimeError("a fault of our own")


def ask(text: str = "Hi", max_tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(TOKENIZER.encode(text), max_tokens=max_tokens, sampling=GREEDY)


async def listen(engine: EngineLike, request: GenerateRequest) -> Heard:
    return Heard([event async for event in engine.generate(request)])


async def reach(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


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
    monkeypatch.setattr("rnn_engine.scheduler.inbox.MAX_UNREAD", 100)
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
        with pytest.raises(OverloadedError, match="no slot was free for"):
            await listen(engine, ask())
        part_of_a_call = asyncio.create_task(anext(engine.generate(ask(), wait_for_room=True)))
        with pytest.raises(OverloadedError):
            await listen(engine, ask())
        assert not part_of_a_call.done()
        await slow.aclose()
        assert isinstance(await part_of_a_call, Started)


async def test_requests_that_are_all_paused_need_no_steps_and_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.inbox.MAX_UNREAD", 20)
    runner = FakeRunner(ENDLESS, num_slots=1)
    cache = make_cache(runner.shape, "a model", runner)
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        slow = engine.generate(ask(max_tokens=10**6))
        await anext(slow)
        waiting = asyncio.create_task(listen(engine, ask(max_tokens=5)))
        questions_without_a_step = 0
        while questions_without_a_step < 20:  # a worker that has something to run steps between any two
            steps = len(runner.batches)
            await engine.cache_nodes(1)
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


async def test_a_failed_step_is_told_to_its_clients_and_the_engine_goes_on() -> None:
    runner = FakeRunner(HELLO, fail_when=lambda batch: len(batch) > 1)
    async with running(runner) as engine:
        results = await asyncio.gather(*(listen(engine, ask()) for _ in range(4)), return_exceptions=True)
        failures = [result for result in results if isinstance(result, StepError)]
        assert len(failures) >= 2
        assert {str(failure) for failure in failures} == {"told to fail"}
        assert (await listen(engine, ask())).text == "Hello"


async def test_the_worker_survives_a_scheduler_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(FakeRunner(HELLO)) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "step", broken)
            with pytest.raises(StepError, match="the scheduler failed"):
                await listen(engine, ask())
        assert (await listen(engine, ask())).text == "Hello"


@pytest.mark.parametrize("method", ["wait_seconds", "arrived", "stepped"])
async def test_a_policy_that_raises_ends_requests_with_an_error_and_the_engine_goes_on(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Adaptive()
    async with asyncio.timeout(PATIENCE), engine_of(FakeRunner(HELLO), policy=policy) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(policy, method, broken)
            for _ in range(3):
                with pytest.raises(StepError):
                    await listen(engine, ask())
        assert (await listen(engine, ask())).text == "Hello"
        assert engine.stats() == EngineStats(active=0, queued=0)


async def test_a_worker_that_can_not_go_on_ends_every_request_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    runner = FakeRunner(HELLO, num_slots=1, on_step=gate)
    async with running(runner) as engine:
        requests = [asyncio.create_task(listen(engine, ask())) for _ in range(3)]
        await reach(lambda: len(runner.batches) == 1)
        question = asyncio.create_task(engine.drop_cache())
        monkeypatch.setattr(Scheduler, "step", broken)
        monkeypatch.setattr(Scheduler, "abort", broken)
        gate.open()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [EngineClosedError] * 3
        await question
        assert engine.health().status == "failed"
        assert runner.closed
        with pytest.raises(EngineClosedError):
            await listen(engine, ask())
    assert not engine.stats().active


async def test_a_question_to_a_worker_that_ends_is_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    runner = FakeRunner(HELLO, on_step=gate)
    cache = make_cache(runner.shape, "a model", runner)
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        request = asyncio.create_task(listen(engine, ask()))
        await reach(lambda: len(runner.batches) == 1)
        question = asyncio.create_task(engine.drop_cache())
        await asyncio.sleep(0)
        monkeypatch.setattr(Worker, "_obey", broken)
        monkeypatch.setattr(Scheduler, "abort", broken)
        gate.open()
        results = await asyncio.gather(request, question, return_exceptions=True)
        assert [type(result) for result in results] == [EngineClosedError] * 2


async def test_a_request_that_can_not_be_queued_ends_with_an_error_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    runner = FakeRunner(HELLO, on_step=gate)
    async with running(runner) as engine:
        healthy = asyncio.create_task(listen(engine, ask()))
        await reach(lambda: len(runner.batches) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "submit", broken)
            refused = asyncio.create_task(listen(engine, ask()))
            await asyncio.sleep(0)
            gate.open()
            with pytest.raises(StepError, match="a fault of our own"):
                await refused
        assert (await healthy).text == "Hello"


@pytest.mark.parametrize(("marked", "cached"), [(False, [0, 0, 1400, 1400, 1400]), (True, [0, 1400, 1400, 1400, 1400])])
async def test_short_questions_after_a_long_shared_text_go_on_from_its_end(marked: bool, cached: list[int]) -> None:
    runner = FakeRunner(HELLO, max_tokens=256)
    cache = make_cache(runner.shape, "a model", runner)
    text = "Long. " * 233 + "::"
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        for question, saved in zip(("Who??", "Do I?", "Am I?", "Is it", "Can I"), cached, strict=True):
            request = replace(ask(text + question), checkpoint_positions=[len(text)] if marked else [])
            assert (await listen(engine, request)).events[0] == Started(len(text) + 5, saved)


async def test_a_state_that_overflows_ends_its_own_requests_alone() -> None:
    """Its wkv is finite, and so accepted; what the model makes of it is not."""
    model = random_model(tiny_shape(vocab=TOKENIZER.size), seed=1)
    runner = load_runner(model, "cpu", num_slots=4, max_tokens=256)
    cache = make_cache(model.shape, "a model", runner)
    huge = model.shape.initial_state()
    huge["wkv"][:] = 3e38
    bad = replace(ask("Hi" * 50, max_tokens=4), initial_state=InitialState("huge", huge), stop_tokens=[], keep_end=True)
    good = [replace(ask(text * 30, max_tokens=8), stop_tokens=[]) for text in "abc"]
    async with asyncio.timeout(PATIENCE), engine_of(runner, cache=cache) as engine:
        alone = [await listen(engine, request) for request in good]
        await engine.drop_cache()
        results = await asyncio.gather(*(listen(engine, one) for one in [bad, *good, bad]), return_exceptions=True)
        assert [isinstance(result, StepError) for result in results] == [True, False, False, False, True]
        for heard, expected in zip(results[1:4], alone, strict=True):
            assert isinstance(heard, Heard)
            assert [info.token for info in heard.tokens] == [info.token for info in expected.tokens]
        assert {checkpoint.root for checkpoint in cache.checkpoints()} == {"none"}


async def test_closing_ends_live_and_queued_requests_and_frees_the_device() -> None:
    runner = FakeRunner(ENDLESS, num_slots=1)
    async with running(runner) as engine:
        requests = [asyncio.create_task(listen(engine, ask(max_tokens=10**6))) for _ in range(3)]
        await reach(lambda: engine.stats() == EngineStats(active=1, queued=2))
        await asyncio.gather(engine.close(), engine.close())
        assert runner.closed
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [EngineClosedError] * 3
        with pytest.raises(EngineClosedError, match="the engine has stopped"):
            await listen(engine, ask())
        await engine.close()


async def test_what_came_before_the_end_can_still_be_read() -> None:
    runner = FakeRunner(ENDLESS)
    heard: list[Event] = []

    async def read_on(events: AsyncGenerator[Event, None]) -> None:
        async for event in events:
            heard.append(event)

    async with running(runner) as engine:
        events = engine.generate(ask(max_tokens=10**6))
        await anext(events)
        await reach(lambda: len(runner.batches) > 5)
        await engine.close()
        with pytest.raises(EngineClosedError):
            await read_on(events)
    assert len(Heard(heard).tokens) >= 5


async def test_a_device_that_can_not_be_freed_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise StepError("lost")

    runner = FakeRunner(HELLO)
    monkeypatch.setattr(runner, "close", broken)
    async with running(runner) as engine:
        assert (await listen(engine, ask())).text == "Hello"


@pytest.mark.parametrize("is_busy", [True, False])
def test_the_worker_ends_where_its_loop_was_closed_without_a_word(
    is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnn_engine.watchdog.LOOK_SECONDS", 0.001)
    gate = Gate()
    closed = threading.Event()

    class TellingRunner(FakeRunner):
        def close(self) -> None:
            super().close()
            closed.set()

    async def begin() -> AsyncGenerator[Event, None]:
        engine = engine_of(TellingRunner(ENDLESS, on_step=gate))
        events = engine.generate(ask(max_tokens=10**6))
        if is_busy:
            gate.let(1)
            await anext(events)
        return events

    loop = asyncio.new_event_loop()
    events = loop.run_until_complete(begin())
    loop.close()
    gate.open()
    assert closed.wait(PATIENCE)
    del events


def test_a_loop_that_shuts_down_ends_iterations_that_were_abandoned_without_an_error() -> None:
    errors: list[dict[str, object]] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))

    async def begin() -> tuple[Engine, list[AsyncGenerator[Event, None]]]:
        engine = engine_of(FakeRunner(ENDLESS))
        iterations = [engine.generate(ask(max_tokens=10**6)) for _ in range(4)]
        for events in iterations:
            await anext(events)
        return engine, iterations

    engine, iterations = loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_asyncgens())  # in no particular order
    loop.run_until_complete(engine.close())
    loop.close()
    assert errors == []
    del iterations


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
