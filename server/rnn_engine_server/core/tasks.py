"""Work that a cancelled caller does not leave half done, and the cancelling of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def uninterrupted(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a function that must run to its end even if its caller is cancelled, as when a client leaves."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(function(*args, **kwargs))

    return call


async def cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def run_whole(function: Callable[[], T]) -> T:
    """Call a function on a thread, and return its result. If cancelled, wait until it has returned."""
    running = asyncio.create_task(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        raise


@asynccontextmanager
async def on_thread(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Return a context manager that enters and leaves `manager` on threads, since both may block for the disk."""
    entering = asyncio.create_task(asyncio.to_thread(manager.__enter__))
    try:
        yield await asyncio.shield(entering)
    except BaseException as error:
        await asyncio.wait((entering,))  # the client may leave before the manager was entered
        if entering.exception() is not None:
            raise
        if not await run_whole(partial(manager.__exit__, type(error), error, error.__traceback__)):
            raise
    else:
        await run_whole(partial(manager.__exit__, None, None, None))
