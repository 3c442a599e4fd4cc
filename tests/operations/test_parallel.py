"""Several engine requests side by side: order, limit, back-pressure, failure."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine.errors import StepError
from rnn_engine.operations.parallel import ParallelRequests
from rnn_engine.requests import Finished, GenerateRequest, Started, TextDelta
from tests.support.fake_engine import FakeEngine

LONG = 100_000


def requests(count: int) -> list[GenerateRequest]:
    return [GenerateRequest(prompt=[number + 1], max_tokens=LONG) for number in range(count)]


async def read_all(fleet: ParallelRequests) -> None:
    async for _ in fleet:
        pass


async def test_events_of_each_request_are_complete_and_in_order() -> None:
    engine = FakeEngine(reply=lambda request: "x" * request.prompt[0], num_slots=4)
    seen: dict[int, list[type[object]]] = {number: [] for number in range(4)}
    async with ParallelRequests(engine, requests(4), limit=4) as fleet:
        async for number, event in fleet:
            seen[number].append(type(event))
    assert seen == {number: [Started, *[TextDelta] * (number + 1), Finished] for number in range(4)}


async def test_no_requests_no_events() -> None:
    async with ParallelRequests(FakeEngine(), [], limit=1) as fleet:
        assert [item async for item in fleet] == []


async def test_reader_that_pauses_holds_its_engine_requests_back() -> None:
    engine = FakeEngine(reply=lambda _: "x" * LONG)
    async with ParallelRequests(engine, requests(1), limit=1) as fleet:
        await anext(fleet)
        before = -1
        while before != engine.produced:
            before = engine.produced
            for _ in range(100):
                await asyncio.sleep(0)
        assert engine.produced < 100
    assert engine.active == 0


async def test_leaving_abandons_those_that_run_and_those_that_wait() -> None:
    engine = FakeEngine(hold=0)
    async with ParallelRequests(engine, requests(5), limit=2):
        await engine.held.wait()
    assert engine.active == 0
    assert len(engine.requests) == 2


async def test_first_failure_ends_all() -> None:
    engine = FakeEngine(fail_at=1)
    async with ParallelRequests(engine, requests(3), limit=3) as fleet:
        with pytest.raises(StepError, match="device was lost"):
            await asyncio.wait_for(read_all(fleet), 5)
    assert engine.active == 0
