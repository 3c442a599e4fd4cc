"""Several parallel requests to an engine: order, limit, back-pressure, failure."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine.errors import OverloadedError, StepError
from rnn_engine.operations.parallel import ParallelRequests
from rnn_engine.requests import Finished, GenerateRequest, Started, TextDelta
from tests.support.fake_engine import FakeEngine

LONG = 100_000


def requests(count: int) -> list[GenerateRequest]:
    return [GenerateRequest(prompt=[number + 1], max_tokens=LONG) for number in range(count)]


async def read_all(running: ParallelRequests) -> None:
    async for _ in running:
        pass


async def test_events_of_each_request_are_complete_and_in_order() -> None:
    engine = FakeEngine(reply=lambda request: "x" * request.prompt[0], num_slots=4)
    seen: dict[int, list[type[object]]] = {number: [] for number in range(4)}
    async with ParallelRequests(engine, requests(4), limit=4) as running:
        async for events in running:
            for number, event in events:
                seen[number].append(type(event))
    assert seen == {number: [Started, *[TextDelta] * (number + 1), Finished] for number in range(4)}


async def test_no_requests_no_events() -> None:
    async with ParallelRequests(FakeEngine(), [], limit=1) as running:
        assert [item async for item in running] == []


@pytest.mark.parametrize("count", [1, 3])
async def test_reader_that_pauses_holds_its_engine_requests_back(count: int) -> None:
    engine = FakeEngine(reply=lambda _: "x" * LONG, num_slots=count)
    async with ParallelRequests(engine, requests(count), limit=count) as running:
        await anext(aiter(running))
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


async def test_one_request_needs_no_task() -> None:
    before = asyncio.all_tasks()
    async with ParallelRequests(FakeEngine(), requests(1), limit=4) as running:
        async for _ in running:
            assert asyncio.all_tasks() == before


@pytest.mark.parametrize("count", [1, 3])
async def test_generation_that_ends_early_is_an_error(count: int) -> None:
    async with ParallelRequests(FakeEngine(vanish_at=2), requests(count), limit=count) as running:
        with pytest.raises(StepError, match="ended early"):
            await asyncio.wait_for(read_all(running), 5)


@pytest.mark.parametrize("count", [1, 3])
async def test_full_queue_refuses_before_anything_runs(count: int) -> None:
    engine = FakeEngine(refuse=OverloadedError("full", 1.0))
    with pytest.raises(OverloadedError):
        async with ParallelRequests(engine, requests(count), limit=count) as running:
            await read_all(running)
    assert engine.requests == []


@pytest.mark.parametrize("count", [1, 3])
async def test_part_of_a_call_that_has_begun_is_not_refused(count: int) -> None:
    engine = FakeEngine(refuse=OverloadedError("full", 1.0))
    async with ParallelRequests(engine, requests(count), limit=count, wait_for_room=True) as running:
        await read_all(running)
    assert len(engine.requests) == count


async def test_queue_that_fills_up_later_refuses_nothing() -> None:
    engine = FakeEngine()
    async with ParallelRequests(engine, requests(9), limit=2) as running:
        async for _ in running:
            engine.refuse = OverloadedError("full", 1.0)
    assert len(engine.requests) == 9


@pytest.mark.parametrize("count", [1, 3])
async def test_first_failure_ends_all(count: int) -> None:
    engine = FakeEngine(fail_at=1)
    async with ParallelRequests(engine, requests(count), limit=count) as running:
        with pytest.raises(StepError, match="device was lost"):
            await asyncio.wait_for(read_all(running), 5)
    assert engine.active == 0
