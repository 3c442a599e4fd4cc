"""The worker threads: clients take turns, none takes all, and what nobody waits for is not begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from rnn_engine.requests import Client
from rnn_engine_server.core.workers import Workers

ANN, BOB, BATCH, OTHER_BATCH = Client("ann"), Client("bob"), Client("a", 1.0, True), Client("b", 1.0, True)


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


async def test_one_client_leaves_a_thread_to_others_and_takes_turns_with_them(workers: Workers) -> None:
    gate = Gate()
    calls = [asyncio.create_task(workers.run(ANN, gate.function(f"ann {number}"))) for number in range(5)]
    await begun(gate, 2)
    calls.append(asyncio.create_task(workers.run(BOB, gate.function("bob"))))
    await begun(gate, 3)
    assert sorted(gate.begun) == ["ann 0", "ann 1", "bob"]
    gate.open()
    assert await asyncio.gather(*calls) == ["ann 0", "ann 1", "ann 2", "ann 3", "ann 4", "bob"]


async def test_the_background_comes_last_and_leaves_a_thread(workers: Workers) -> None:
    gate = Gate()
    calls = [asyncio.create_task(workers.run(client, gate.function(client.name))) for client in (BATCH, OTHER_BATCH)]
    calls.append(asyncio.create_task(workers.run(Client("c", 1.0, True), gate.function("c"))))
    await begun(gate, 2)
    calls.append(asyncio.create_task(workers.run(ANN, gate.function("ann"))))
    await begun(gate, 3)
    assert gate.begun == ["a", "b", "ann"]
    calls += [asyncio.create_task(workers.run(client, gate.function("late"))) for client in (BOB,)]
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(*calls)
    assert gate.begun[3:] == ["late", "c"]


async def test_what_nobody_waits_for_is_not_begun(workers: Workers) -> None:
    gate = Gate()
    calls = [asyncio.create_task(workers.run(ANN, gate.function(f"{number}"))) for number in range(6)]
    await begun(gate, 2)
    for call in calls[1:5]:
        call.cancel()
    gate.open()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert gate.begun == ["0", "1", "5"]
    assert [result for result in results if isinstance(result, str)] == ["0", "5"]
    assert await workers.run(BOB, lambda: "bob") == "bob"


async def test_an_error_reaches_its_caller(workers: Workers) -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await workers.run(ANN, fail)
    assert await workers.run(ANN, lambda: 1) == 1
