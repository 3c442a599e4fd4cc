"""Server-sent events, and streams that report a status at regular intervals.

aiohttp-sse does not serve here: it starts a task of pings for every stream, and has only streams of events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from aiohttp import hdrs, web

from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.errors import describe
from rnn_engine_server.core.routing import EVENTS, LIFECYCLE, SETTINGS

P = ParamSpec("P")
T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
"""The event that ends a stream. By it clients know that nothing is missing."""


def encode_event(body: Mapping[str, object], name: str | None = None) -> bytes:
    """Encode one server-sent event that has `body` as JSON, and the event name `name` if given."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return b"%bdata: %b\n\n" % (head, to_json(body))


EVENT_STREAM = f"{EVENTS}; charset=utf-8"
"""The Content-Type of a stream of server-sent events."""


class EventStream:
    """A response that is sent piece by piece: server-sent events, unless its content type says otherwise.

    Nothing is sent before `open`.
    """

    def __init__(self, request: web.Request, content_type: str = EVENT_STREAM) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={
                "Content-Type": content_type,
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )

    async def open(self) -> None:
        """Send the response's headers. From now on an error can only be sent as an event."""
        await self._response.prepare(self._request)

    async def write(self, events: bytes) -> None:
        """Send encoded events to the client, and wait if the client reads slowly.

        Raises ConnectionError if the client has disconnected.
        """
        if events:
            await self._response.write(events)

    async def close(self) -> web.StreamResponse:
        """End the stream's response and return it."""
        await self._response.write_eof()
        return self._response


async def send_until_closing(
    request: web.Request, send: Coroutine[Any, Any, None], seconds: float | None = None
) -> None:
    """Run `send`, which sends a stream, until it ends, the server takes no more requests, or `seconds` are over.

    Raises what it raises: ConnectionError if the client has left.
    """
    sending = asyncio.create_task(send)
    closing = asyncio.create_task(request.app[LIFECYCLE].wait_closing())
    try:
        await asyncio.wait((sending, closing), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        await cancel_tasks(sending, closing)


# Streams that report the current status again and again.

_CLOSE_SECONDS = 1.0  # for a client to take the end of a stream


async def send_repeatedly(
    request: web.Request, seconds: float, make: Callable[[], Awaitable[Mapping[str, object]]]
) -> web.StreamResponse:
    """Send a stream of status events: call `make` at once and then every `seconds`, and send each result as JSON.

    The stream ends when the server takes no more requests, so that it does not delay a stop, or when the time of a
    request is up (`max_request_seconds`).
    """
    stream = EventStream(request)
    first = encode_event(await make())  # an error before the first event has a status of its own
    await stream.open()
    if request.method != hdrs.METH_HEAD:
        most = request.app[SETTINGS].limits.max_request_seconds
        await send_until_closing(request, _send(stream, first, seconds, make), most)
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
