"""Places in an engine: refusal, waiting in order, and clients that leave while they wait."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine.admission import Admission
from rnn_engine.errors import EngineClosedError, OverloadedError


class Holder:
    """A task that holds a place until `release`."""

    def __init__(self, admission: Admission, order: list[str], name: str, *, wait: bool = True) -> None:
        self._released = asyncio.Event()
        self.task = asyncio.create_task(self._hold(admission, order, name, wait))

    def release(self) -> None:
        self._released.set()

    async def end(self) -> None:
        self.release()
        await self.task

    async def _hold(self, admission: Admission, order: list[str], name: str, wait: bool) -> None:
        async with admission.place(wait=wait):
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
            admission.check()
        await holders[done].end()
        with pytest.raises(OverloadedError):
            await Holder(admission, order, "new", wait=False).task
        await turns()
        assert "".join(order) == expected
    await holders[2].end()
    admission.check()
    await holders[3].end()
    assert admission.taken == 0


@pytest.mark.parametrize("handed_over", [False, True])
async def test_place_is_not_lost_to_one_that_leaves_while_it_waits(handed_over: bool) -> None:
    admission, order = Admission(1, 0), list[str]()
    first, leaver, last = (Holder(admission, order, name) for name in "abc")
    await turns()
    if handed_over:
        first.release()
        await asyncio.sleep(0)  # the place is the leaver's, who does not know it yet
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
    for seconds, advice in ((None, 0.25), (8.0, 2.0), (18.0, 2.25)):
        if seconds is not None:
            admission.note_duration(seconds)
        with pytest.raises(OverloadedError) as refusal:
            admission.check()
        assert refusal.value.retry_after == pytest.approx(advice)
    for holder in holders:
        await holder.end()
