"""The engine through its public methods: many clients at once, clients that leave, failures, the end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, InvalidRequestError, ModelError, OverloadedError, StepError
from rnn_engine.interface import EngineLike
from rnn_engine.loading.parts import assemble
from rnn_engine.requests import EngineStats, Event, Finished, GenerateRequest, SamplingParams, Started
from rnn_engine.scheduler import Scheduler
from rnn_engine.types import Batch
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Heard, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits, scripted_logits
from tests.support.models import random_model, save_safetensors, tiny_shape

TOKENIZER = ByteTokenizer()
GREEDY = SamplingParams(temperature=0.0, seed=0)
HELLO = scripted_logits(TOKENIZER.size, TOKENIZER.encode("Hello"))
ENDLESS = scripted_logits(TOKENIZER.size, [ord("x") + 1] * 1000)
PATIENCE = 30.0  # seconds until a test that waits in vain fails


@dataclass
class Gate:
    """Holds the worker before every step until it is let through."""

    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_open: bool = False

    def __call__(self, batch: Batch) -> None:
        if not self.is_open:
            self.permits.acquire()

    def let(self, steps: int) -> None:
        self.permits.release(steps)

    def open(self) -> None:
        self.is_open = True
        self.permits.release()


@asynccontextmanager
async def running(runner: FakeRunner, max_queued: int = 64) -> AsyncGenerator[Engine, None]:
    async with asyncio.timeout(PATIENCE), engine_of(runner, max_queued) as engine:
        yield engine


def engine_of(runner: FakeRunner, max_queued: int = 64) -> Engine:
    return Engine(assemble(runner, TOKENIZER, model="fake", device="none", weights="f32"), max_queued=max_queued)


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
    def broken(scheduler: Scheduler) -> None:
        raise RuntimeError("a fault of our own")

    async with running(FakeRunner(HELLO)) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "step", broken)
            with pytest.raises(StepError, match="the scheduler failed"):
                await listen(engine, ask())
        assert (await listen(engine, ask())).text == "Hello"


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
    assert len(heard) >= 5


async def test_a_device_that_can_not_be_freed_does_not_hang_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise StepError("lost")

    runner = FakeRunner(HELLO)
    monkeypatch.setattr(runner, "close", broken)
    async with running(runner) as engine:
        assert (await listen(engine, ask())).text == "Hello"


def test_the_worker_ends_where_its_loop_was_closed_without_a_word() -> None:
    gate = Gate()
    closed = threading.Event()

    class TellingRunner(FakeRunner):
        def close(self) -> None:
            super().close()
            closed.set()

    async def begin() -> AsyncGenerator[Event, None]:
        engine = engine_of(TellingRunner(ENDLESS, on_step=gate))
        events = engine.generate(ask(max_tokens=10**6))
        gate.let(1)
        await anext(events)
        return events

    loop = asyncio.new_event_loop()
    events = loop.run_until_complete(begin())
    loop.close()
    gate.open()
    assert closed.wait(PATIENCE)
    del events


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
    async with await Engine.load(model_path, device="cpu", num_slots=2) as engine:
        assert (engine.info.model, engine.info.tokenizer) == ("tiny", "none")
        assert (engine.info.device, engine.info.weights, engine.info.num_slots) == ("cpu", "f32", 2)
        assert engine.info.shape == tiny_shape(vocab=50)
        prompts = [[1, 2, 3], [4] * 90, [5, 6], [1, 2, 3]]
        together = await asyncio.gather(*(tokens_of(engine, prompt) for prompt in prompts))
        assert together == [await tokens_of(engine, prompt) for prompt in prompts]
        assert together[0] == together[3] != together[1]
    async with await Engine.load(model_path, name="mine", device="cpu", num_slots=1) as engine:
        assert engine.info.model == "mine"
        assert await tokens_of(engine, [1, 2, 3]) == together[0]


async def test_a_missing_model_file_is_told_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.safetensors"):
        await Engine.load(tmp_path / "missing.safetensors", device="cpu")
