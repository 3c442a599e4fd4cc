"""Several engine requests run side by side. Knows events, not what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from rnn_engine.errors import StepError
from rnn_engine.interface import EngineLike
from rnn_engine.requests import Event, Finished, GenerateRequest

_EVENTS_AHEAD = 16


class ParallelRequests:
    """Iterates over (number of the request, event) as the events come; the requests run inside `async with`.

    No more than `limit` requests are with the engine at a time, so that one client's long list does not fill the
    queue. The first failure is raised and ends the iteration. Leaving the block abandons whatever still runs.
    """

    def __init__(self, engine: EngineLike, requests: Sequence[GenerateRequest], limit: int) -> None:
        self._engine = engine
        self._requests = requests
        self._room = asyncio.Semaphore(limit)
        self._events: asyncio.Queue[tuple[int, Event] | Exception] = asyncio.Queue(_EVENTS_AHEAD)
        self._unfinished = len(requests)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def requests(self) -> Sequence[GenerateRequest]:
        return self._requests

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(*numbered)) for numbered in enumerate(self._requests)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        if self._unfinished == 0:
            raise StopAsyncIteration
        item = await self._events.get()
        if isinstance(item, Exception):
            raise item
        if isinstance(item[1], Finished):
            self._unfinished -= 1
        return item

    async def _run(self, number: int, request: GenerateRequest) -> None:
        try:
            async with self._room, aclosing(self._engine.generate(request)) as events:
                event: Event | None = None
                async for event in events:
                    await self._events.put((number, event))
                if not isinstance(event, Finished):
                    raise StepError("the generation ended early")
        except Exception as error:
            await self._events.put(error)
