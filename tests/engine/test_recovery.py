"""An engine whose device fails: its health, the errors that requests get, and its recovery."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, ModelError, StepError, UnavailableError
from rnn_engine.forward import Progress
from rnn_engine.loading.parts import assemble
from rnn_engine.types import Batch
from rnn_engine_states.cache.browse import TreeQuery
from rnn_engine_states.cache.cache import make_cache
from tests.support.clients import Heard
from tests.support.engines import ENDLESS, HELLO, TOKENIZER, ask, engine_of, listen
from tests.support.fake_runner import FakeRunner

WAIT_SECONDS = 30.0  # until a test that waits in vain fails


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.worker.RETRY_SECONDS", (0.0, 0.0, 0.0))


@dataclass
class Faults:
    """A condition that fails the steps with these numbers, and all steps while `lost`."""

    numbers: frozenset[int] = frozenset()
    lost: bool = False
    steps: int = 0
    on_step: Callable[[int], None] = field(default=lambda number: None)

    def __call__(self, batch: Batch) -> bool:
        self.on_step(self.steps)
        self.steps += 1
        return self.lost or self.steps - 1 in self.numbers


async def reach_ok(engine: Engine) -> None:
    while engine.health().status != "ok":
        await asyncio.sleep(0)


async def test_after_a_failed_step_a_token_is_run_before_health_is_ok_again() -> None:
    seen: list[str] = []
    faults = Faults(frozenset({1}), on_step=lambda _: seen.append(engine.health().status))
    async with asyncio.timeout(WAIT_SECONDS), engine_of(FakeRunner(HELLO, fail_when=faults)) as engine:
        with pytest.raises(StepError, match="told to fail"):
            await listen(engine, ask())
        assert (await listen(engine, ask())).text == "Hello"
        assert engine.health().status == "ok"
    assert seen[:4] == ["ok", "ok", "checking", "ok"]


async def test_a_device_that_answers_again_is_waited_for_by_those_in_the_queue() -> None:
    faults = Faults(on_step=lambda number: setattr(faults, "lost", 3 <= number < 6))
    async with asyncio.timeout(WAIT_SECONDS), engine_of(FakeRunner(HELLO, num_slots=1, fail_when=faults)) as engine:
        first, second = await asyncio.gather(*(listen(engine, ask()) for _ in range(2)), return_exceptions=True)
        assert isinstance(first, StepError)
        assert isinstance(second, Heard)
        assert second.text == "Hello"
        assert engine.health().status == "ok"
        assert engine.counters().device_reopens == 1


async def test_a_device_that_does_not_come_back_ends_the_engine_for_good() -> None:
    faults = Faults(on_step=lambda number: setattr(faults, "lost", number >= 3))
    runner = FakeRunner(HELLO, num_slots=1, fail_when=faults)
    async with asyncio.timeout(WAIT_SECONDS), engine_of(runner) as engine:
        results = await asyncio.gather(*(listen(engine, ask()) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [StepError, EngineClosedError, EngineClosedError]
        health = engine.health()
        assert (health.status, health.reason) == ("failed", "the device did not come back in 3 attempts: told to fail")
        with pytest.raises(EngineClosedError):
            await listen(engine, ask())
        assert runner.closed


async def test_steps_that_fail_in_a_row_end_all_that_run() -> None:
    """The device answers after each failure, but every step with a run of more than one token fails."""
    runner = FakeRunner(HELLO, num_slots=2, fail_when=lambda batch: len(batch[0].tokens) > 1)
    async with asyncio.timeout(WAIT_SECONDS), engine_of(runner) as engine:
        for _ in range(5):
            with pytest.raises(StepError):
                await listen(engine, ask())
            await reach_ok(engine)


async def test_requests_are_refused_while_the_device_is_opened_again() -> None:
    refusals: list[BaseException] = []

    def reopen_slowly(number: int) -> None:
        faults.lost = 3 <= number < 6
        if number == 5:
            asyncio.run_coroutine_threadsafe(send(), loop).result()

    async def send() -> None:
        with pytest.raises(UnavailableError) as refusal:
            engine.check_queue()
        refusals.append(refusal.value)
        with pytest.raises(UnavailableError):
            await listen(engine, ask())

    loop = asyncio.get_running_loop()
    faults = Faults(on_step=reopen_slowly)
    async with asyncio.timeout(WAIT_SECONDS), engine_of(FakeRunner(HELLO, fail_when=faults)) as engine:
        with pytest.raises(StepError):
            await listen(engine, ask())
        await reach_ok(engine)
        assert (await listen(engine, ask())).text == "Hello"
    [refusal] = refusals
    assert isinstance(refusal, UnavailableError)
    assert str(refusal) == "the device failed and is being opened again, attempt 1 of 3: told to fail"
    assert refusal.retry_after > 0


async def test_a_device_that_is_lost_while_nobody_asks_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.worker.IDLE_SECONDS", 0.001)
    faults = Faults(on_step=lambda number: setattr(faults, "lost", number < 2))
    async with asyncio.timeout(WAIT_SECONDS), engine_of(FakeRunner(HELLO, fail_when=faults)) as engine:
        while faults.steps < 5:
            await asyncio.sleep(0)
        await reach_ok(engine)
        assert engine.counters().device_reopens == 1
        assert (await listen(engine, ask())).text == "Hello"


async def test_a_request_that_waits_may_leave_and_the_engine_close_while_the_model_is_loaded() -> None:
    loading, go_on = threading.Event(), threading.Event()
    parts_loaded: list[int] = []

    def load(progress: Progress, *_: object) -> FakeRunner:
        loading.set()
        assert go_on.wait(WAIT_SECONDS)
        for part in range(3):
            parts_loaded.append(part)
            progress("loading", part, 3)
        raise AssertionError("the load goes on although the engine is closed")

    faults = Faults(frozenset({1}), on_step=lambda number: setattr(faults, "lost", number > 0))
    runner = FakeRunner(HELLO, num_slots=1, fail_when=faults)
    parts = assemble(runner, TOKENIZER, model="fake", device="none", weights="f32", load_runner=load)
    async with asyncio.timeout(WAIT_SECONDS):
        engine = Engine(parts)
        requests = [asyncio.create_task(listen(engine, ask())) for _ in range(3)]
        while not loading.is_set():
            await asyncio.sleep(0)
        requests[-1].cancel()
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        go_on.set()
        results = await asyncio.gather(*requests, closing, return_exceptions=True)
    assert [type(result) for result in results[:3]] == [StepError, EngineClosedError, asyncio.CancelledError]
    assert parts_loaded == [0]


async def test_a_model_that_is_gone_ends_the_engine_at_once() -> None:
    def load(*_: object) -> FakeRunner:
        raise ModelError("model.st: No such file or directory")

    faults = Faults(on_step=lambda number: setattr(faults, "lost", number > 0))
    runner = FakeRunner(HELLO, num_slots=1, fail_when=faults)
    parts = assemble(runner, TOKENIZER, model="fake", device="none", weights="f32", load_runner=load)
    async with asyncio.timeout(WAIT_SECONDS), Engine(parts) as engine:
        results = await asyncio.gather(*(listen(engine, ask()) for _ in range(2)), return_exceptions=True)
        assert [type(result) for result in results] == [StepError, EngineClosedError]
        assert engine.health().status == "failed"
        assert engine.health().reason == "model.st: No such file or directory"


async def test_a_request_whose_reader_is_behind_hears_what_there_was_and_then_of_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.inboxes.MAX_UNREAD", 20)
    faults = Faults()
    runner = FakeRunner(ENDLESS, num_slots=2, fail_when=faults)
    cache = make_cache(runner.shape, "model", runner)
    parts = assemble(runner, TOKENIZER, model="fake", device="none", weights="f32", cache=cache)
    async with asyncio.timeout(WAIT_SECONDS), Engine(parts) as engine:
        slow = engine.generate(ask(max_tokens=10**6))
        heard = [await anext(slow)]
        steps = -1
        while steps < 20 or steps != faults.steps:  # a busy worker steps between two questions
            steps = faults.steps
            await engine.cache_tree(TreeQuery())
            await engine.cache_tree(TreeQuery())
        faults.on_step = lambda number: setattr(faults, "lost", number < lost_from + 2)
        lost_from = faults.steps
        with pytest.raises(StepError):
            await listen(engine, ask())
        await reach_ok(engine)

        async def read_on() -> None:
            async for event in slow:
                heard.append(event)

        with pytest.raises(UnavailableError, match="the device failed and is being opened again"):
            await read_on()
    assert len(Heard(heard).tokens) > 20
