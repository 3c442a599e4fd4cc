"""Run several engine requests of one client call in parallel, and count their prompt tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias

from rnn_engine.errors import StepError
from rnn_engine.interface import EngineLike
from rnn_engine.requests import Event, Finished, GenerateRequest, PromptScored, Started, TokenInfo


@dataclass(frozen=True, slots=True)
class Cost:
    """The prompt tokens of a request, and how many of them were not run because their state was cached."""

    prompt_tokens: int
    cached_tokens: int


_EVENTS_AHEAD = 16

Numbered: TypeAlias = tuple[int, Event]
"""An event of one of several requests, with the request's index."""


class ParallelRequests:
    """An async context manager that runs several requests in parallel; iterate over it to receive their events.

    Iteration yields lists of (index of the request, event). Each list has the events that are ready at that time, at
    least one; the events of one request are in order.

    At most `limit` requests are in the engine at a time, so that one client's long list does not fill the queue. They
    are rejected all together or not at all. `__aenter__` raises OverloadedError if the engine's queue is full; for a
    single request, the first `anext` does. Once the first request was admitted, the others wait for room in the queue.
    `wait_for_room` skips the check, for a caller that has already run a first part of the same client call.

    The first failure is raised and ends the iteration. Leaving the block cancels the requests that still run.
    """

    def __init__(
        self, engine: EngineLike, requests: Sequence[GenerateRequest], limit: int, *, wait_for_room: bool = False
    ) -> None:
        self._engine = engine
        self.requests = requests
        self._limit = limit
        self._wait_for_room = wait_for_room
        self._queue: asyncio.Queue[Numbered | Exception] = asyncio.Queue(_EVENTS_AHEAD)
        self._tasks: list[asyncio.Task[None]] = []
        self._events = self._read_one() if len(requests) == 1 else self._read_queue()

    async def __aenter__(self) -> Self:
        if len(self.requests) > 1:
            if not self._wait_for_room:
                self._engine.check_queue()
            numbered = iter(enumerate(self.requests))
            count = min(self._limit, len(self.requests))
            self._tasks = [asyncio.create_task(self._run(numbered)) for _ in range(count)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._events.aclose()

    def __aiter__(self) -> AsyncIterator[list[Numbered]]:
        return self._events

    async def _read_one(self) -> AsyncGenerator[list[Numbered], None]:
        """Yield the events of a single request, straight from the engine, without a task or a queue."""
        event: Event | None = None
        async with aclosing(self._engine.generate(self.requests[0], wait_for_room=self._wait_for_room)) as events:
            async for event in events:
                yield [(0, event)]
        _check_end(event)

    async def _read_queue(self) -> AsyncGenerator[list[Numbered], None]:
        unfinished = len(self.requests)
        while unfinished:
            ready = [await self._queue.get()]
            while not self._queue.empty():
                ready.append(self._queue.get_nowait())
            failures = [item for item in ready if isinstance(item, Exception)]
            events = [item for item in ready if not isinstance(item, Exception)]
            if events:
                unfinished -= sum(isinstance(event, Finished) for _, event in events)
                yield events
            if failures:
                raise failures[0]

    async def _run(self, numbered: Iterator[tuple[int, GenerateRequest]]) -> None:
        """Run requests from `numbered`, which all tasks share; put their events, or the first error, on the queue."""
        try:
            for number, request in numbered:
                event: Event | None = None
                async with aclosing(self._engine.generate(request, wait_for_room=True)) as events:
                    async for event in events:
                        await self._queue.put((number, event))
                _check_end(event)
        except Exception as error:
            await self._queue.put(error)


def _check_end(event: Event | None) -> None:
    if not isinstance(event, Finished):
        raise StepError("the generation ended early")


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """What a request without generated text has given: its cost, the log-probabilities of its prompt, and its end."""

    cost: Cost
    scored: tuple[TokenInfo, ...]  # empty if none were asked for
    finished: Finished


async def run_each(
    engine: EngineLike, requests: Sequence[GenerateRequest], *, wait_for_room: bool = False
) -> AsyncGenerator[tuple[int, Ended], None]:
    """Run requests in parallel; yield index and result as each ends. Errors are those of `ParallelRequests`."""
    costs: dict[int, Cost] = {}
    scored: dict[int, tuple[TokenInfo, ...]] = {}
    async with ParallelRequests(engine, requests, engine.info.num_slots, wait_for_room=wait_for_room) as running:
        async for events in running:
            for number, event in events:
                if isinstance(event, Started):
                    costs[number] = Cost(event.prompt_tokens, event.cached_tokens)
                elif isinstance(event, PromptScored):
                    scored[number] = event.tokens
                elif isinstance(event, Finished):
                    yield number, Ended(costs.pop(number), scored.pop(number, ()), event)
