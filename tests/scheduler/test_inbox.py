"""The unread events of a reader: in order, joined if the reader is behind, and bounded."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine.errors import StepError
from rnn_engine.requests import Finished, Started, TextDelta, TokenInfo
from rnn_engine.scheduler import Inbox
from rnn_engine.scheduler.inboxes import MAX_UNREAD

STARTED = Started(3, 0)
FINISHED = Finished("stop", 2, seed=0)


def delta(text: str, alternatives: int = 0) -> TextDelta:
    top = tuple((token, -1.0) for token in range(alternatives))
    return TextDelta(text, (TokenInfo(ord(text), text.encode(), None, top),))


@pytest.fixture
def pauses() -> list[bool]:
    return []


@pytest.fixture
def inbox(pauses: list[bool]) -> Inbox:
    return Inbox(pauses.append)


async def test_events_are_read_one_by_one_by_a_reader_that_keeps_up(inbox: Inbox) -> None:
    for event in (STARTED, delta("a"), delta("b"), FINISHED):
        inbox.put(event)
        assert await inbox.get() is event


async def test_a_reader_that_is_behind_gets_all_text_at_once(inbox: Inbox) -> None:
    for event in (STARTED, delta("a"), delta("b"), delta("c"), FINISHED):
        inbox.put(event)
    joined = TextDelta("abc", tuple(info for text in "abc" for info in delta(text).tokens))
    assert [await inbox.get() for _ in range(3)] == [STARTED, joined, FINISHED]


async def test_an_error_comes_after_the_events_before_it(inbox: Inbox) -> None:
    inbox.put(delta("a"))
    inbox.put(StepError("the device is gone"))
    assert await inbox.get() == delta("a")
    with pytest.raises(StepError, match="the device is gone"):
        await inbox.get()


async def test_a_reader_that_waits_is_woken_and_one_that_stopped_waiting_loses_nothing(inbox: Inbox) -> None:
    gone = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    inbox.put(STARTED)
    assert await inbox.get() == STARTED
    reader = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put(delta("a"))
    assert await reader == delta("a")


@pytest.mark.parametrize("alternatives", [0, 7])
async def test_a_request_is_paused_while_too_much_of_it_is_unread(
    inbox: Inbox, pauses: list[bool], alternatives: int
) -> None:
    most = MAX_UNREAD // (1 + alternatives)
    for _ in range(2):
        for _ in range(most):
            inbox.put(delta("a", alternatives))
        assert pauses == []
        inbox.put(delta("a", alternatives))
        inbox.put(delta("a", alternatives))  # of a step that was in flight
        assert pauses == [True]
        event = await inbox.get()
        assert isinstance(event, TextDelta)
        assert len(event.tokens) == most + 2
        assert pauses == [True, False]
        pauses.clear()
