"""The report of an engine on each request that ends, and its counters."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import EngineClosedError, OverloadedError, StepError
from rnn_engine.requests import GenerateRequest
from rnn_engine.telemetry import Outcome, RequestReport, reports_to
from tests.support.engines import HELLO, ask, engine_of
from tests.support.fake_runner import FakeRunner


async def read(engine: Engine, request: GenerateRequest) -> None:
    async for _ in engine.generate(request):
        pass


async def test_a_whole_request_and_one_that_is_cut_short() -> None:
    reports: list[RequestReport] = []
    async with engine_of(FakeRunner(HELLO)) as engine:
        with reports_to(reports.append):
            await read(engine, ask())
            await read(engine, ask(max_tokens=3))
        await read(engine, ask())
        counters = engine.counters()
    assert [(one.outcome, one.prompt_tokens, one.completion_tokens) for one in reports] == [
        (Outcome.STOP, 2, 6),
        (Outcome.LENGTH, 2, 3),
    ]
    for report in reports:
        assert report.timing is not None
        moments = (report.arrived, report.timing.started, report.timing.first_token, report.ended)
        assert report.arrived == report.timing.arrived
        assert moments == tuple(sorted(moments))
    assert {outcome: count for outcome, count in counters.outcomes.items() if count} == {"stop": 2, "length": 1}
    assert (counters.prompt_tokens.sum, counters.completion_tokens.sum, counters.generated_tokens) == (6, 15, 15)


async def test_a_client_that_leaves() -> None:
    reports: list[RequestReport] = []
    async with engine_of(FakeRunner(HELLO)) as engine:
        with reports_to(reports.append):
            async with aclosing(engine.generate(ask())) as events:
                await anext(events)
        assert engine.counters().outcomes[Outcome.ABANDONED] == 1
    [report] = reports
    assert (report.outcome, report.prompt_tokens) == (Outcome.ABANDONED, 2)


async def test_requests_of_tasks_are_told_to_whoever_began_them() -> None:
    reports: list[RequestReport] = []
    async with engine_of(FakeRunner(HELLO)) as engine:
        with reports_to(reports.append):
            tasks = [asyncio.create_task(read(engine, ask(max_tokens=1))) for _ in range(3)]
        await asyncio.gather(*tasks)
    assert [report.outcome for report in reports] == [Outcome.LENGTH] * 3


async def test_a_failed_step_a_full_queue_and_a_closed_engine() -> None:
    reports: list[RequestReport] = []
    engine = engine_of(FakeRunner(HELLO, num_slots=1, fail_when=lambda batch: len(batch[0].tokens) == 3), max_queued=0)
    async with engine:
        with reports_to(reports.append):
            with pytest.raises(StepError):
                await read(engine, ask("abc"))
            async with aclosing(engine.generate(ask())) as events:
                await anext(events)
                with pytest.raises(OverloadedError):
                    engine.check_queue()
                with pytest.raises(OverloadedError):
                    await read(engine, ask())
        await engine.close()
        with reports_to(reports.append), pytest.raises(EngineClosedError):
            await read(engine, ask())
        counters = engine.counters()
    told = [report.outcome for report in reports]
    assert told == [Outcome.FAILED_STEP, Outcome.OVERLOADED, Outcome.ABANDONED, Outcome.CLOSED]
    assert counters.outcomes[Outcome.OVERLOADED] == 2
    assert counters.failed_steps == 1


class BrokenMask:
    """A mask that allows all tokens, but raises after `tokens` of them."""

    ended = False

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def forced(self) -> tuple[int, ...]:
        self._check(-1)
        return ()

    def next(self) -> None:
        self._check(0)

    def _check(self, left: int) -> None:
        if self._left == left:
            raise RuntimeError("a fault of the mask")

    def accept(self, token: int) -> None:
        self._left -= 1

    def copy(self) -> BrokenMask:
        return BrokenMask(self._left)


@pytest.mark.parametrize("tokens", [-1, 0, 2])
async def test_the_log_tells_whose_request_failed(tokens: int, caplog: pytest.LogCaptureFixture) -> None:
    """The request fails at its start, or after a step. Both happen on the worker's thread."""
    asker = ContextVar("asker", default="nobody")
    told: list[tuple[str, str]] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append((record.getMessage(), asker.get()))

    handler, logger = Listener(), logging.getLogger("rnn_engine.scheduler")
    logger.addHandler(handler)
    caplog.set_level(logging.INFO, logger.name)

    async def fail(name: str) -> None:
        asker.set(name)
        with pytest.raises(StepError, match="a fault of the mask"):
            await read(engine, replace(ask(), token_mask=lambda: BrokenMask(tokens)))

    async with engine_of(FakeRunner(HELLO)) as engine:
        await asyncio.gather(fail("Ann"), fail("Bob"))
    logger.removeHandler(handler)
    message = "a request could not start" if tokens < 0 else "a request ends because of its mask: a fault of the mask"
    assert sorted(told) == [(message, "Ann"), (message, "Bob")]
