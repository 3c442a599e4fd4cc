"""A worker whose device hangs, and a blocked event loop: both are reported, and no request waits for ever."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, UnavailableError
from rnn_engine.loading.parts import assemble
from rnn_engine.requests import GenerateRequest, SamplingParams
from rnn_engine.scheduler import Scheduler, Worker
from rnn_engine.scheduler.worker import Watchdog
from rnn_engine.types import Batch
from rnn_engine_states.cache.cache import make_cache
from tests.support.clients import Heard
from tests.support.engines import HELLO, TOKENIZER, reach
from tests.support.fake_runner import FakeRunner

WAIT_SECONDS = 30.0  # until a test that waits in vain fails


class Hang:
    """A hook that holds the worker in its step with this number until `release`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._steps = 0
        self._released = threading.Event()
        self.reached = threading.Event()

    def __call__(self, batch: Batch) -> None:
        assert batch
        self._steps += 1
        if self._steps == self._number:
            self.reached.set()
            assert self._released.wait(WAIT_SECONDS)

    def release(self) -> None:
        self._released.set()


@asynccontextmanager
async def hanging(number: int, num_slots: int = 1) -> AsyncGenerator[tuple[Engine, Hang]]:
    hang = Hang(number)
    runner = FakeRunner(HELLO, num_slots=num_slots, on_step=hang)
    cache = make_cache(runner.shape, "a model", runner)
    parts = assemble(runner, TOKENIZER, model="fake", device="none", weights="f32", cache=cache)
    async with asyncio.timeout(WAIT_SECONDS):
        engine = Engine(parts)
        try:
            yield engine, hang
        finally:
            hang.release()
            await engine.close()


def ask() -> GenerateRequest:
    return GenerateRequest(TOKENIZER.encode("Hi"), sampling=SamplingParams(temperature=0, seed=0))


async def listen(engine: Engine) -> Heard:
    return Heard([event async for event in engine.generate(ask())])


async def test_a_device_that_hangs_ends_all_that_wait_and_may_come_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.worker.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("rnn_engine.scheduler.worker.STEP_SECONDS", 0.05)
    async with hanging(number=1) as (engine, hang):
        requests = [asyncio.create_task(listen(engine)) for _ in range(3)]
        await reach(hang.reached.is_set)
        question = asyncio.create_task(engine.drop_cache())
        results = await asyncio.gather(*requests, question, return_exceptions=True)
        assert [type(result) for result in results] == [UnavailableError] * 4
        health = engine.health()
        assert health.status == "stalled"
        assert health.reason is not None
        assert health.reason.startswith("a step has been running for ")
        assert health.seconds > 0.05
        with pytest.raises(UnavailableError, match="a step has been running"):
            await listen(engine)
        with pytest.raises(UnavailableError, match="a step has been running"):
            engine.check_queue()
        monkeypatch.setattr("rnn_engine.scheduler.worker.STEP_SECONDS", 60.0)
        hang.release()
        await reach(lambda: engine.health().status == "ok")
        assert (await listen(engine)).text == "Hello"
        assert engine.stats().active + engine.stats().queued == 0
    [told] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "; the worker's stack:\n  File " in told.getMessage()


async def test_work_between_two_steps_that_hangs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine.scheduler.worker.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("rnn_engine.scheduler.worker.STEP_SECONDS", 0.05)
    async with hanging(number=0) as (engine, _):
        release = threading.Event()
        question = asyncio.create_task(engine._ask(lambda: release.wait(WAIT_SECONDS)))
        with pytest.raises(UnavailableError, match="work between two steps has been running"):
            await question
        assert engine.health().status == "stalled"
        monkeypatch.setattr("rnn_engine.scheduler.worker.STEP_SECONDS", 60.0)
        release.set()
        await reach(lambda: engine.health().status == "ok")
        assert (await listen(engine)).text == "Hello"


async def test_a_command_that_runs_during_a_load_leaves_the_time_limit_of_the_load() -> None:
    async with hanging(number=0) as (engine, _):
        worker = engine._worker

        def load() -> tuple[object, object]:
            with worker._deadline_of("loading the model again", 600.0):
                before = worker._deadline
                worker._run_command(lambda: None)
                return before, worker._deadline

        before, after = await engine._ask(load)
        assert before == after
        assert after is not None


async def test_closing_leaves_a_worker_that_hangs_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rnn_engine.engine.CLOSE_SECONDS", 0.01)
    async with hanging(number=1) as (engine, hang):
        request = asyncio.create_task(listen(engine))
        await reach(hang.reached.is_set)
        await engine.close()
        with pytest.raises(EngineClosedError):
            await request
        assert "the worker has not ended after 0.01 s and is abandoned" in caplog.text
        assert "in __call__" in caplog.text


async def test_an_event_loop_that_stands_still_is_told_with_its_stack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The test's own thread is the loop's, and runs no callback until it awaits."""
    monkeypatch.setattr("rnn_engine.scheduler.worker.LOOP_SECONDS", 0.0)
    runner = FakeRunner(HELLO)
    worker = Worker(Scheduler(runner, TOKENIZER.decode_bytes), lambda _: None, lambda: None, lambda _: runner)
    watchdog = Watchdog(worker, asyncio.get_running_loop(), lambda: None)
    for _ in range(3):
        watchdog.look()
    [record] = caplog.records
    assert record.getMessage().startswith("the event loop has been blocked for 0 s; its stack:")
    assert "test_an_event_loop_that_stands_still" in record.getMessage()
    await asyncio.sleep(0)
    watchdog.look()
    assert [record.getMessage() for record in caplog.records[1:]] == ["the event loop runs again"]
