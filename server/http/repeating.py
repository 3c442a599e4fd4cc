"""Streams that tell the same thing again and again: how things stand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import hdrs, web

from server.http.context import LIFECYCLE, SETTINGS
from server.http.errors import describe
from server.http.sse import EventStream, encode_event

_CLOSE_SECONDS = 1.0  # for a client to take the end of a stream


async def send_repeatedly(
    request: web.Request, seconds: float, make: Callable[[], Awaitable[Mapping[str, object]]]
) -> web.StreamResponse:
    """Send what `make` gives as an event, now and every `seconds`.

    The stream ends when the server takes no more requests, so that it delays no stop, or when the time of a request is
    up (`max_request_seconds`).
    """
    stream = EventStream(request)
    first = encode_event(await make())  # an error before the first event has a status of its own
    await stream.open()
    if request.method != hdrs.METH_HEAD:
        sending = asyncio.create_task(_send(stream, first, seconds, make))
        closing = asyncio.create_task(request.app[LIFECYCLE].wait_closing())
        try:
            most = request.app[SETTINGS].limits.max_request_seconds
            await asyncio.wait((sending, closing), timeout=most, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()  # raises where the client has left
        finally:
            await _cancel(sending, closing)
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            return await stream.close()
    except TimeoutError as error:
        raise ConnectionAbortedError("the client did not take the end of the stream") from error


async def _send(
    stream: EventStream, event: bytes, seconds: float, make: Callable[[], Awaitable[Mapping[str, object]]]
) -> None:
    try:
        while True:
            await stream.write(event)
            await asyncio.sleep(seconds)
            event = encode_event(await make())
    except ConnectionError:
        raise
    except Exception as error:
        await stream.write(encode_event(describe(error).body))


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
