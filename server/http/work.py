"""Work that may take long, kept off the event loop.

The functions are pure Python in parts, so a thread does not make them quicker; it lets the event loop answer others
meanwhile. Few run at a time, so that what they take of memory is bounded too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from aiohttp import web

from server.http.context import WORKERS

T = TypeVar("T")

NUM_WORKERS = 2

SHORT_WORK = 4096
"""Work up to this size is done at once: it takes about as long as handing it to a thread."""

CALL_WORK = 64
"""The size of the work that making one `GenerateRequest` is."""


def make_workers() -> ThreadPoolExecutor:
    """Return the threads for work that may take long."""
    return ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="work")


async def work(request: web.Request, size: int, function: Callable[[], T]) -> T:
    """Return what `function` gives, which runs on another thread unless `size` is small.

    `size` is about the number of characters or tokens that the function looks at.
    """
    if size <= SHORT_WORK:
        return function()
    run = partial(copy_context().run, function)
    return await asyncio.get_running_loop().run_in_executor(request.app[WORKERS], run)
