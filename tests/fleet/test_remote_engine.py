"""The engine of a fleet over replicas in this process, reached by the bytes that Ray would carry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from rnn_engine.errors import (
    EngineClosedError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    StepError,
    UnavailableError,
)
from rnn_engine.fleet import remote
from rnn_engine.fleet.remote import RemoteEngine
from rnn_engine.fleet.wire import ReplicaLostError
from rnn_engine.requests import Event, Finished, GenerateRequest, Started, TextDelta
from rnn_engine.sampling.params import SamplingParams
from rnn_engine.scheduler.inboxes import MAX_UNREAD
from rnn_engine.telemetry import Outcome, RequestReport, reports_to
from rnn_engine.types import InitialState
from rnn_engine_states.cache.browse import BLOCK_TOKENS, TreeQuery
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.frozen import NO_INITIAL_STATE, freeze_state
from rnn_engine_states.named.entry import Retention
from tests.support.fake_engine import FakeEngine, encode, state_after
from tests.support.fleet import LocalLinks, front_of, local_fleet, until
from tests.support.toy_states import ToyDevice, toy_shape

PROMPT = GenerateRequest(prompt=encode("Hi"), sampling=SamplingParams(seed=1))


@asynccontextmanager
async def opened(**engines: FakeEngine) -> AsyncIterator[tuple[RemoteEngine, LocalLinks]]:
    """Yield a fleet, and the links to its engines."""
    fleet, links = await local_fleet(engines)
    try:
        yield fleet, links
    finally:
        await fleet.close()


async def events_of(engine: RemoteEngine, request: GenerateRequest) -> list[Event]:
    async with aclosing(engine.generate(request)) as events:
        return [event async for event in events]


async def text_of(engine: RemoteEngine, request: GenerateRequest) -> str:
    return "".join(event.text for event in await events_of(engine, request) if isinstance(event, TextDelta))


async def test_a_request_is_answered_as_by_one_engine() -> None:
    alone = FakeEngine()
    async with opened(a=FakeEngine()) as (fleet, _):
        expected = [event async for event in alone.generate(PROMPT)]
        found = await events_of(fleet, PROMPT)
    assert found[0] == expected[0]
    assert found[-1] == expected[-1]
    tokens = [token for event in found if isinstance(event, TextDelta) for token in event.tokens]
    assert tokens == [token for event in expected if isinstance(event, TextDelta) for token in event.tokens]


async def test_a_front_is_told_what_was_kept_before_it_came() -> None:
    device = ToyDevice(toy_shape(), num_slots=1)
    device.start([1])
    cache = make_cache(device.shape, "toy", device)
    prompt = list(range(1, 1 + 2 * BLOCK_TOKENS))
    cache.insert(NO_INITIAL_STATE, prompt, 0, kind=CheckpointKind.PROMPT_END)
    async with opened(a=FakeEngine(), b=FakeEngine(cache=cache)) as (fleet, links):
        await events_of(fleet, replace(PROMPT, prompt=[*prompt, 7]))
        await events_of(fleet, replace(PROMPT, prompt=[8, *prompt]))
        assert links.calls == ["b", "a"]


async def test_requests_are_shared_among_replicas() -> None:
    async with opened(a=FakeEngine(hold=0), b=FakeEngine(hold=0)) as (fleet, links):
        assert fleet.info.num_slots == 4
        running = [asyncio.create_task(text_of(fleet, PROMPT)) for _ in range(6)]
        for engine in fakes(links):
            await engine.held.wait()
        await until(lambda: len(links.calls) == 6)
        assert sorted(links.calls) == ["a"] * 3 + ["b"] * 3
        assert (fleet.stats().active, fleet.stats().queued) == (4, 2)
        for engine in fakes(links):
            engine.release.set()
        assert await asyncio.gather(*running) == [" Hello there!"] * 6


async def test_prompts_that_begin_alike_go_to_one_replica() -> None:
    async with opened(a=FakeEngine(), b=FakeEngine()) as (fleet, links):
        for text in ("The moon. " * 20, "A river. " * 20):
            await asyncio.gather(*(text_of(fleet, replace(PROMPT, prompt=encode(f"{text}{n}"))) for n in range(3)))
        salted = replace(PROMPT, prompt=encode("The moon. " * 20), cache_scope="ann")
        async with aclosing(fleet.generate(replace(PROMPT, prompt=encode("The moon. " * 20)))) as events:
            await anext(events)
            await text_of(fleet, salted)
        assert links.calls == [*"aaa", *"bbb", *"ab"]


async def test_a_reader_that_leaves_frees_the_slot() -> None:
    async with opened(a=FakeEngine(hold=3)) as (fleet, links):
        [engine] = fakes(links)
        async with aclosing(fleet.generate(PROMPT)) as events:
            assert isinstance(await anext(events), Started)
            await engine.held.wait()
        await asyncio.wait_for(engine.left.wait(), 60)
        assert engine.active == 0
        assert fleet.counters().outcomes[Outcome.ABANDONED] == 1


async def test_errors_are_those_of_the_replica() -> None:
    async with opened(a=FakeEngine(fail_at=2)) as (fleet, _):
        with pytest.raises(StepError, match="the device was lost"):
            await events_of(fleet, PROMPT)
        with pytest.raises(InvalidRequestError, match="expected a token id from 0 to 256"):
            fleet.generate(replace(PROMPT, prompt=[999]))
        assert fleet.counters().outcomes[Outcome.FAILED_STEP] == 1


async def test_a_replica_that_refuses_is_passed_on() -> None:
    async with opened(a=FakeEngine(refuse=OverloadedError("full", 0.5))) as (fleet, _):
        with pytest.raises(OverloadedError, match="full") as caught:
            await events_of(fleet, PROMPT)
        assert caught.value.retry_after == 0.5


async def test_the_queue_is_bounded_over_all_replicas() -> None:
    fleet, links = await local_fleet({"a": FakeEngine(hold=0), "b": FakeEngine(hold=0)}, max_queued=1)
    running = [asyncio.create_task(text_of(fleet, PROMPT)) for _ in range(5)]
    await until(lambda: len(links.calls) == 5)
    with pytest.raises(OverloadedError, match="5 requests are running or queued"):
        fleet.check_queue()
    with pytest.raises(OverloadedError):
        await events_of(fleet, PROMPT)
    for engine in fakes(links):
        engine.release.set()
    await asyncio.gather(*running)
    fleet.check_queue()
    await fleet.close()


async def test_a_slow_reader_holds_its_request_and_no_other() -> None:
    text = "a" * (3 * MAX_UNREAD)
    async with opened(a=FakeEngine(reply=lambda request: text)) as (fleet, links):
        [engine] = fakes(links)
        request = replace(PROMPT, max_tokens=len(text))
        async with aclosing(fleet.generate(request)) as events:
            await anext(events)
            await until(lambda: engine.produced > MAX_UNREAD)
            for _ in range(20):
                await asyncio.sleep(0)
            produced = engine.produced
            assert produced < 2 * MAX_UNREAD
            await asyncio.sleep(0)
            assert engine.produced == produced
            rest = [event async for event in events]
        assert sum(len(event.tokens) for event in rest if isinstance(event, TextDelta)) == len(text)


async def test_events_that_are_there_together_go_in_one_parcel() -> None:
    async with opened(a=FakeEngine(hold=1, num_slots=8)) as (fleet, links):
        [engine] = fakes(links)
        running = [asyncio.create_task(text_of(fleet, PROMPT)) for _ in range(8)]
        await until(lambda: engine.active == 8)
        before = links.parcels_sent
        engine.release.set()
        await asyncio.gather(*running)
        assert links.parcels_sent - before <= 2 * len(" Hello there!")  # and not 8 times as many


async def test_states_travel_with_requests() -> None:
    state = state_after([1, 2, 3])
    initial = InitialState("root", state, np.zeros(257, np.float32))
    async with opened(a=FakeEngine()) as (fleet, links):
        found = await events_of(fleet, replace(PROMPT, initial_state=initial, keep_end=True))
        [engine] = fakes(links)
    sent = engine.requests[0].initial_state
    assert sent is not None
    assert sent.root == "root"
    assert all(np.array_equal(sent.state[name], state[name]) for name in state)
    end = found[-1]
    assert isinstance(end, Finished)
    assert end.end is not None
    assert all(
        np.array_equal(end.end.state[name], values) for name, values in state_after(end.end.tokens, "root").items()
    )


async def test_replicas_forget_a_state_that_has_no_name_any_more() -> None:
    async with opened(a=FakeEngine(), b=FakeEngine()) as (fleet, links):
        frozen = freeze_state(state_after([1, 2, 3]), fleet.info.shape, "test")
        await fleet.states.put("story", frozen, Retention(), source="test")
        await fleet.states.delete("story")
        await until(lambda: all(engine.forgotten == [frozen.digest] for engine in fakes(links)))


class _FailingLinks(LocalLinks):
    """The links to two replicas, of which the second answers no questions."""

    def __init__(self, error: Exception) -> None:
        super().__init__({"a": FakeEngine(), "b": FakeEngine()})
        self._error = error

    async def ask(self, replica: str, question: bytes) -> bytes:
        if replica == "b":
            raise self._error
        return await super().ask(replica, question)


@asynccontextmanager
async def opened_over(links: LocalLinks) -> AsyncIterator[RemoteEngine]:
    fleet = await RemoteEngine.open(
        links, replace(front_of(links.engines["a"]), on_forgotten=fakes(links)[0].named.on_forgotten)
    )
    try:
        yield fleet
    finally:
        await fleet.close()


async def test_a_replica_that_is_lost_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with opened_over(_FailingLinks(ReplicaLostError("b", "TimeoutError"))) as fleet:
        assert await fleet.drop_cache() == 0
    assert "b is left out of drop_cache: the replica b that ran the request is gone: TimeoutError" in caplog.text


async def test_a_question_that_fails_at_a_replica_fails() -> None:
    async with opened_over(_FailingLinks(KeyError("a fault"))) as fleet:
        with pytest.raises(KeyError, match="a fault"):
            await fleet.cache_tree(TreeQuery())


async def test_forgetting_a_state_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with opened_over(_FailingLinks(KeyError("a fault"))) as fleet:
        frozen = freeze_state(state_after([1, 2, 3]), fleet.info.shape, "test")
        await fleet.states.put("story", frozen, Retention(), source="test")
        await fleet.states.delete("story")
        await until(lambda: "may not be dropped" in caplog.text)


async def test_a_deadline_is_the_same_moment_at_the_replica() -> None:
    deadline = time.monotonic() + 100
    async with opened(a=FakeEngine()) as (fleet, links):
        await events_of(fleet, replace(PROMPT, deadline=deadline))
        [engine] = fakes(links)
    assert engine.requests[0].deadline == pytest.approx(deadline, abs=10)


async def test_a_request_is_reported_where_it_was_sent() -> None:
    reports: list[RequestReport] = []
    async with opened(a=FakeEngine()) as (fleet, _):
        with reports_to(reports.append):
            await events_of(fleet, PROMPT)
    [report] = reports
    assert (report.outcome, report.prompt_tokens, report.completion_tokens) == (Outcome.STOP, 2, 13)


class TestDeath:
    async def test_a_request_that_has_no_answer_yet_runs_on_another(self) -> None:
        class Silent(FakeEngine):
            async def generate(
                self, request: GenerateRequest, *, wait_for_room: bool = False
            ) -> AsyncGenerator[Event, None]:
                self.held.set()
                await self.release.wait()
                async for event in super().generate(request):
                    yield event

        async with opened(a=Silent(), b=FakeEngine()) as (fleet, links):
            first = fakes(links)[0]
            running = asyncio.create_task(text_of(fleet, PROMPT))
            await first.held.wait()
            await links.kill("a")
            assert await running == " Hello there!"
            assert links.calls == ["a", "b"]

    async def test_a_request_whose_answer_has_begun_ends_and_others_go_on(self) -> None:
        async with opened(a=FakeEngine(hold=3), b=FakeEngine(hold=3)) as (fleet, links):
            running = [asyncio.create_task(text_of(fleet, PROMPT)) for _ in range(2)]
            for engine in fakes(links):
                await engine.held.wait()
            [_, other] = fakes(links)
            await links.kill("a")
            with pytest.raises(UnavailableError, match="the replica a that ran the request is gone"):
                await running[0]
            other.release.set()
            assert await running[1] == " Hello there!"
            assert await text_of(fleet, PROMPT) == " Hello there!"
            assert fleet.counters().outcomes[Outcome.UNAVAILABLE] == 1

    async def test_without_replicas_requests_are_refused_until_there_is_one(self) -> None:
        async with opened(a=FakeEngine()) as (fleet, links):
            await links.kill("a")
            await until(lambda: fleet.health().status == "recovering")
            with pytest.raises(UnavailableError, match="no replica is running"):
                fleet.check_queue()
            links.add("b", FakeEngine())
            await until(lambda: fleet.health().status == "ok")
            assert await text_of(fleet, PROMPT) == " Hello there!"

    async def test_a_replica_that_hangs_has_no_other_count_as_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote, "SURVEY_SECONDS", 0.001)
        async with opened(a=FakeEngine(), b=FakeEngine()) as (fleet, links):
            links.one_hangs = True
            await until(lambda: links.unanswered > 2)
            assert fleet.health().status == "ok"
            assert await text_of(fleet, PROMPT) == " Hello there!"

    async def test_a_replica_that_leaves_ends_its_requests(self) -> None:
        async with opened(a=FakeEngine(hold=3), b=FakeEngine()) as (fleet, links):
            running = asyncio.create_task(text_of(fleet, PROMPT))
            leaving = fakes(links)[0]
            await leaving.held.wait()
            links.hidden.add("a")
            await until(lambda: fleet.info.num_slots == 2)
            assert [await text_of(fleet, PROMPT) for _ in range(2)] == [" Hello there!"] * 2
            assert links.calls == ["a", "b", "b"]
            leaving.release.set()
            assert await running == " Hello there!"


async def test_closing_ends_what_runs() -> None:
    fleet, links = await local_fleet({"a": FakeEngine(hold=2)})
    [engine] = fakes(links)
    running = asyncio.create_task(text_of(fleet, PROMPT))
    await engine.held.wait()
    await fleet.close()
    with pytest.raises(EngineClosedError):
        await running
    with pytest.raises(EngineClosedError):
        fleet.check_queue()
    assert engine.closed


class _SilentLinks(LocalLinks):
    """The links to replicas whose streams never begin."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__({"a": engine})
        self.asked = asyncio.Event()

    async def parcels(self, replica: str, front: str) -> AsyncGenerator[bytes]:
        self.asked.set()
        await asyncio.Event().wait()
        yield b""


async def test_opening_that_is_cancelled_leaves_no_tasks_and_the_links_open() -> None:
    engine = FakeEngine()
    links = _SilentLinks(engine)
    opening = asyncio.create_task(RemoteEngine.open(links, front_of(engine)))
    await links.asked.wait()
    opening.cancel()
    await asyncio.wait((opening,))
    assert opening.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not engine.closed


async def test_a_position_that_no_replica_has() -> None:
    async with opened(a=FakeEngine()) as (fleet, _):
        for position in ("7", "a-7", "b-7"):
            with pytest.raises(NotFoundError, match=f"there is no kept position '{position}'"):
                await fleet.cache_tokens(position)


def fakes(links: LocalLinks) -> list[FakeEngine]:
    return [engine for engine in links.engines.values() if isinstance(engine, FakeEngine)]
