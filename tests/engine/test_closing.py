"""The end of an engine: the events that its clients get, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, StepError
from rnn_engine.interface import EngineStats
from rnn_engine.requests import Event
from tests.support.clients import Heard
from tests.support.engines import ENDLESS, HELLO, PATIENCE, ask, engine_of, listen, reach, running
from tests.support.fake_runner import FakeRunner
from tests.support.gate import Gate


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
    monkeypatch.setattr("rnn_engine.scheduler.worker.LOOK_SECONDS", 0.001)
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
