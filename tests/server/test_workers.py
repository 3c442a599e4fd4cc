"""The worker threads: clients take turns, none takes all, and what nobody waits for is not begun."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from functools import partial
from json import dumps
from typing import Any

import pytest

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.chat_template.jinja import JinjaTemplate
from rnn_engine.operations.chat_prompt import make_chat_prompt
from rnn_engine.pauses import PAUSE, pause
from rnn_engine.requests import Client
from rnn_engine_server.apis.openai.schemas import ChatRequest
from rnn_engine_server.core.call import Workers
from rnn_engine_server.core.json_text import parse_json
from rnn_engine_server.core.schema import UnknownFields
from tests.support.fake_engine import FakeEngine

ANN, BOB, BATCH, OTHER_BATCH = Client("ann"), Client("bob"), Client("a", 1.0, True), Client("b", 1.0, True)

LONG, SHORT = 1 << 20, 1 << 15  # sizes of work


class Gate:
    """Functions that wait on their threads until `open`; it says which have begun, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._opened = threading.Event()

    def function(self, name: str) -> Callable[[], str]:
        def run() -> str:
            self.begun.append(name)
            assert self._opened.wait(30)
            return name

        return run

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    workers = Workers(3)
    yield workers
    workers.close()


async def begun(gate: Gate, count: int) -> None:
    while len(gate.begun) < count:
        await asyncio.sleep(0.001)


async def test_a_client_runs_one_long_and_one_short_function_at_a_time(workers: Workers) -> None:
    gate = Gate()
    work = [("long", LONG), ("long 2", LONG), ("short", SHORT), ("short 2", SHORT)]
    calls = [asyncio.create_task(workers.run(ANN, gate.function(name), size)) for name, size in work]
    await begun(gate, 2)
    calls.append(asyncio.create_task(workers.run(BOB, gate.function("bob"), LONG)))
    await begun(gate, 3)
    assert sorted(gate.begun) == ["bob", "long", "short"]
    gate.open()
    assert await asyncio.gather(*calls) == ["long", "long 2", "short", "short 2", "bob"]


@pytest.mark.parametrize(("others", "rests"), [((BOB,), True), ((), False), ((ANN,), False), ((BOB, BATCH, ANN), True)])
async def test_a_client_rests_after_a_long_function_if_others_are_there(
    others: tuple[Client, ...], rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    begun_at: list[float] = []
    workers = Workers(3, lambda: now)
    loop = asyncio.get_running_loop()

    def long() -> None:
        nonlocal now
        begun_at.append(loop.time())
        now += 0.02

    rests_of: list[float] = []
    call_later = loop.call_later

    def note_rest(delay: float, *args: Any) -> asyncio.TimerHandle:  # noqa: ANN401
        rests_of.append(delay)
        return call_later(delay, *args)

    monkeypatch.setattr(loop, "call_later", note_rest)
    for other in (*others, ANN):
        workers.note(other)
    await asyncio.gather(*(workers.run(ANN, long, LONG) for _ in range(2)))
    assert rests_of == ([pytest.approx(0.04)] * 2 if rests else [])
    assert not rests or begun_at[1] - begun_at[0] >= 0.04
    await workers.run(ANN, long, SHORT)
    now += 10
    workers.note(ANN)
    await workers.run(ANN, long, LONG)
    assert len(rests_of) == 2 * rests, "the function was short, or the others have not asked for long"
    workers.close()


@pytest.mark.parametrize(
    ("others", "size", "rests"), [((BOB,), LONG, [0.02, 0.06]), ((BOB,), SHORT, [0, 0]), ((), LONG, [0, 0])]
)
async def test_a_long_function_rests_where_it_pauses_if_others_are_there(
    others: tuple[Client, ...], size: int, rests: list[float]
) -> None:
    now = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(seconds)

    workers = Workers(3, lambda: now, sleep)

    def long() -> None:
        nonlocal now
        for seconds in (0.01, 0.004, 0.026, 0.004):
            now += seconds
            pause()

    pause()  # on no worker's thread
    for other in (*others, ANN):
        workers.note(other)
    await workers.run(ANN, long, size)
    assert slept == pytest.approx(rests)
    workers.close()


def in_world_template(chat: bytes) -> None:
    make_chat_prompt(FakeEngine(), WorldTemplate(), ChatRequest.parse(chat).conversation, 1 << 20)


def in_jinja_template(chat: bytes) -> None:
    template = JinjaTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    make_chat_prompt(FakeEngine(), template, ChatRequest.parse(chat).conversation, 1 << 20)


def without_what_is_unknown(chat: bytes) -> None:
    ChatRequest.parse(chat, unknown=UnknownFields(refuse=False))


@pytest.mark.parametrize(
    ("function", "times"),
    [(ChatRequest.parse, 1), (in_world_template, 2), (in_jinja_template, 2), (without_what_is_unknown, 2)],
)
def test_reading_a_chat_pauses_at_each_message(function: Callable[[bytes], object], times: int) -> None:
    few, many = (dumps({"messages": [{"role": "user", "content": "a"}] * number}).encode() for number in (10, 1010))
    assert count_pauses(partial(function, many)) - count_pauses(partial(function, few)) >= 1000 * times


def test_reading_token_ids_pauses_at_each_piece() -> None:
    assert count_pauses(partial(parse_json, dumps([1] * 100_000).encode(), "ids")) >= 10


def count_pauses(function: Callable[[], object]) -> int:
    pauses, context = itertools.count(), copy_context()
    context.run(PAUSE.set, pauses.__next__)
    context.run(function)
    return next(pauses)


async def test_the_background_comes_last_and_takes_one_thread(workers: Workers) -> None:
    gate = Gate()
    calls = [
        asyncio.create_task(workers.run(client, gate.function(client.name), SHORT)) for client in (BATCH, OTHER_BATCH)
    ]
    await begun(gate, 1)
    calls += [asyncio.create_task(workers.run(client, gate.function(client.name), LONG)) for client in (ANN, BOB)]
    await begun(gate, 3)
    calls.append(asyncio.create_task(workers.run(Client("late"), gate.function("late"), LONG)))
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(*calls)
    assert gate.begun == ["a", "ann", "bob", "late", "b"]


async def test_what_nobody_waits_for_is_not_begun(workers: Workers) -> None:
    gate = Gate()
    calls = [asyncio.create_task(workers.run(ANN, gate.function(f"{number}"), LONG)) for number in range(6)]
    await begun(gate, 1)
    for call in calls[:5]:
        call.cancel()
    gate.open()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert gate.begun == ["0", "5"]
    assert [result for result in results if isinstance(result, str)] == ["5"]
    assert await workers.run(BOB, lambda: "bob", LONG) == "bob"


async def test_an_error_that_nobody_waits_for_any_more_is_not_logged(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    def fail() -> None:
        gate.function("fail")()
        raise ValueError("wrong")

    call = asyncio.create_task(workers.run(ANN, fail, LONG))
    await begun(gate, 1)
    call.cancel()
    await asyncio.wait((call,))
    gate.open()
    assert await workers.run(ANN, lambda: 1, LONG) == 1  # after it
    gc.collect()
    assert caplog.records == []


async def test_an_error_reaches_its_caller(workers: Workers) -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await workers.run(ANN, fail, SHORT)
    assert await workers.run(ANN, lambda: 1, SHORT) == 1
