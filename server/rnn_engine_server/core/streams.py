"""Streams of events that are never silent for long, and streams that report a status at regular intervals.

aiohttp-sse does not serve here: it starts a task of pings for every stream, and has only streams of events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, Protocol, Self, TypeVar

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


class Clock(Protocol):
    """The interface by which streams measure silence. An event loop has it."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle: ...


CLOCK: web.AppKey[Clock] = web.AppKey("clock")
"""What streams measure silence by, in place of the event loop."""

HEADERS_SECONDS = 0.5
"""After how long a stream's headers are sent that has no event yet. An error before has a status of its own."""

SILENCE_SECONDS = 10.0
"""How long an open stream may be silent before something without a meaning is sent, so that proxies do not end it."""


def comment() -> bytes:
    """Return a comment of a stream of server-sent events, which clients skip."""
    return b": ping\n\n"


class EventStream:
    """A response that is sent piece by piece: server-sent events, unless its content type says otherwise.

    It is an async context manager. Within it, the headers are sent by `open`, or if that does not come soon; then
    whatever `keep_alive` returns is sent whenever nothing else has been written for a while. Calls within the server
    have no client that would wait, so nothing of this happens for them.
    """

    def __init__(
        self, request: web.Request, content_type: str = EVENT_STREAM, keep_alive: Callable[[], bytes] = comment
    ) -> None:
        self._request = request
        self._keep_alive = keep_alive
        self._clock = request.app.get(CLOCK) or asyncio.get_running_loop()
        self._last = 0.0  # when something was written
        self._is_watched = request.transport is not None
        self._num_writing = 0  # writes that wait for the client
        self._timer: asyncio.TimerHandle | None = None
        self._filling: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._response = web.StreamResponse(
            headers={"Content-Type": content_type, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )

    async def __aenter__(self) -> Self:
        self._watch(HEADERS_SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @property
    def is_open(self) -> bool:
        return self._response.prepared

    async def open(self) -> None:
        """Send the response's headers, unless that was done. From now on an error can only be sent as an event."""
        async with self._opening:
            if not self._response.prepared:
                await self._response.prepare(self._request)
                self._last = self._clock.time()
                self._watch(SILENCE_SECONDS)

    async def is_too_late_for_status(self) -> bool:
        """Return True if the headers are sent; if not, they will not be sent by themselves any more."""
        await self._stop()
        return self._response.prepared

    async def write(self, events: bytes) -> None:
        """Send encoded events to the client, and wait if the client reads slowly.

        Raises ConnectionError if the client has disconnected.
        """
        if events:
            self._last = self._clock.time()
            self._num_writing += 1
            try:
                await self._response.write(events)
            finally:
                self._num_writing -= 1

    async def close(self) -> web.StreamResponse:
        """End the stream's response and return it."""
        await self._stop()
        await self._response.write_eof()
        return self._response

    def _watch(self, seconds: float) -> None:
        """Look after some seconds whether the stream is silent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_watched:
            self._timer = self._clock.call_later(seconds, self._look)

    def _look(self) -> None:
        silence = self._clock.time() - self._last
        if self._response.prepared and (self._num_writing or silence < SILENCE_SECONDS):
            self._watch(SILENCE_SECONDS if self._num_writing else SILENCE_SECONDS - silence)
        else:
            self._filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        with suppress(ConnectionError):  # whoever writes next hears that the client has left
            if self._response.prepared:
                self._watch(SILENCE_SECONDS)
                await self.write(self._keep_alive())
            else:
                await self.open()

    async def _stop(self) -> None:
        self._is_watched = False
        if self._timer is not None:
            self._timer.cancel()
        if self._filling is not None and not self._filling.done():
            if not self._opening.locked():  # headers that are half sent can't be taken back
                self._filling.cancel()
            await asyncio.wait((self._filling,))


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
    first = encode_event(await make())  # an error before the first event has a status of its own
    async with EventStream(request) as stream:
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
