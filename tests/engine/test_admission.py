"""Places in an engine: refusal, waiting in order, clients that leave while they wait, and each client's share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from rnn_engine.errors import EngineClosedError, OverloadedError
from rnn_engine.requests import Client
from rnn_engine.scheduler.inboxes import Admission, QueuePlace

A, B, C = (Client(name) for name in "abc")


class Holder:
    """A task that holds a place until `release`."""

    def __init__(
        self, admission: Admission, order: list[str], name: str, *, wait: bool = True, client: Client = A
    ) -> None:
        self._released = asyncio.Event()
        self.task = asyncio.create_task(self._hold(admission.place(client, wait=wait), order, name))

    def release(self) -> None:
        self._released.set()

    async def end(self) -> None:
        self.release()
        await self.task

    async def _hold(self, place: QueuePlace, order: list[str], name: str) -> None:
        async with place:
            order.append(name)
            await self._released.wait()


async def turns() -> None:
    """Let every task run until it waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_place_goes_to_the_one_that_waited_longest_and_to_no_new_one() -> None:
    admission, order = Admission(1, 1), list[str]()
    holders = [Holder(admission, order, name) for name in "abcd"]
    await turns()
    assert (order, admission.taken) == (["a", "b"], 2)
    for done, expected in enumerate(("abc", "abcd")):
        with pytest.raises(OverloadedError, match="2 requests are running or queued; expected at most 1 running and 1"):
            admission.check(A)
        await holders[done].end()
        with pytest.raises(OverloadedError):
            await Holder(admission, order, "new", wait=False).task
        await turns()
        assert "".join(order) == expected
    await holders[2].end()
    admission.check(A)
    await holders[3].end()
    assert admission.taken == 0


@pytest.mark.parametrize("handed_over", [False, True])
async def test_place_is_not_lost_to_one_that_leaves_while_it_waits(handed_over: bool) -> None:
    admission, order = Admission(1, 0), list[str]()
    first, leaver, last = (Holder(admission, order, name) for name in "abc")
    await turns()
    if handed_over:
        first.release()
        await asyncio.sleep(0)  # the leaver has the place, and does not know it yet
    leaver.task.cancel()
    await asyncio.gather(leaver.task, return_exceptions=True)
    await first.end()
    await turns()
    assert order == ["a", "c"]
    await last.end()
    assert admission.taken == 0


async def test_end_is_told_to_those_that_wait() -> None:
    admission, order = Admission(1, 0), list[str]()
    first, second, third = (Holder(admission, order, name) for name in "abc")
    await turns()
    second.task.cancel()
    await turns()
    admission.close()
    with pytest.raises(EngineClosedError):
        await third.task
    await first.end()
    assert (order, admission.taken) == (["a"], 0)


async def test_advice_to_those_refused_follows_how_long_requests_take() -> None:
    admission = Admission(4, 0)
    holders = [Holder(admission, [], name) for name in "abcd"]
    await turns()
    for seconds, advice in ((None, 1.0), (8.0, 2.0), (18.0, 2.25)):
        if seconds is not None:
            admission.note_duration(seconds)
        with pytest.raises(OverloadedError) as refusal:
            admission.check(A)
        assert refusal.value.retry_after == pytest.approx(advice)
    for holder in holders:
        await holder.end()


async def test_refused_clients_are_advised_to_come_when_half_of_the_queue_has_run() -> None:
    admission = Admission(2, 6)
    holders = [Holder(admission, [], name) for name in "abcdefgh"]
    await turns()
    admission.note_duration(8.0)
    with pytest.raises(OverloadedError) as refusal:
        admission.check(A)
    assert refusal.value.retry_after == pytest.approx(16.0)  # three of six have a slot, after one that runs now
    for holder in holders:
        await holder.end()


class Places:
    """A taker of places for clients, as long as there are any."""

    def __init__(self) -> None:
        self.admission = Admission(8, 64)
        self.held: list[tuple[Client, QueuePlace]] = []

    async def take(self, client: Client, most: int = 1000) -> int:
        """Return how many places `client` gets if it asks for `most`."""
        for number in range(most):
            place = self.admission.place(client, wait=False)
            try:
                await place.__aenter__()
            except OverloadedError:
                return number
            self.held.append((client, place))
        return most

    async def release(self, client: Client, count: int) -> None:
        for held in [held for held in self.held if held[0] == client][:count]:
            self.held.remove(held)
            await held[1].__aexit__(None, None, None)

    def count(self, client: Client) -> int:
        return sum(held[0] == client for held in self.held)


@pytest.fixture
async def places() -> AsyncIterator[Places]:
    places = Places()
    yield places
    for client, _ in list(places.held):
        await places.release(client, 1)
    assert places.admission.taken == 0


async def test_client_alone_has_all_places_and_no_more(places: Places) -> None:
    assert await places.take(A) == 72
    with pytest.raises(OverloadedError, match="72 requests are running or queued; expected at most 8 running and 64"):
        places.admission.check(A)


async def test_client_that_fills_the_queue_leaves_places_to_others(places: Places) -> None:
    await places.take(A)
    places.admission.check(B)
    assert [await places.take(client) for client in (B, A, C, B)] == [32, 0, 16, 0]


async def test_places_that_become_free_go_to_those_below_their_share(places: Places) -> None:
    await places.take(A)
    await places.take(B, 5)
    await places.release(A, 5)
    assert await places.take(A) == 0
    assert await places.take(B) > 25


async def test_a_client_in_the_background_gets_free_places_alone(places: Places) -> None:
    batch = Client("batch", 8.0, is_background=True)
    assert await places.take(batch) == 72
    assert await places.take(A) == 32
    await places.release(batch, 10)
    assert await places.take(batch) == 0


async def test_places_are_shared_by_weight(places: Places) -> None:
    heavy = Client("heavy", 8.0)
    await places.take(A)
    assert await places.take(Client("light", 0.1)) == 7  # of 72, by 0.1 of 1.1
    await places.take(heavy, 1)
    await places.release(A, 40)
    await places.take(heavy)
    assert places.count(heavy) > places.count(A)
    assert await places.take(A) == 0


async def test_place_that_becomes_free_goes_to_the_waiting_client_that_has_least(places: Places) -> None:
    order = list[str]()
    await places.take(A, 70)
    await places.take(B, 2)
    await places.take(C)
    holders = [Holder(places.admission, order, client.name, client=client) for client in (A, A, C, B, B)]
    await turns()
    assert order == ["b", "b"]  # the reserve has room for these
    await places.release(C, places.count(C))
    await turns()
    assert order == ["b", "b", "c"]
    await places.release(A, 5)
    await turns()
    assert order == ["b", "b", "c", "a", "a"]
    for holder in holders:
        await holder.end()


async def test_one_without_a_place_gets_one_whatever_few_others_do(places: Places) -> None:
    chance = random.Random(0)
    clients = [Client(str(number), chance.choice((0.5, 1.0, 3.0))) for number in range(5)]
    for _ in range(3000):
        client = chance.choice(clients)
        if chance.random() < 0.6:
            await places.take(client, chance.choice((1, 10, 200)))
        else:
            await places.release(client, chance.choice((1, 10, 200)))
        assert places.admission.taken == len(places.held) <= 8 + 2 * 64
        places.admission.check(Client("new"))
