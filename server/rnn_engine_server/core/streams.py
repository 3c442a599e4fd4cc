"""Streams of events that are never silent for long, and streams that report a status at regular intervals.

aiohttp-sse does not serve here: it starts a task of pings for every stream, and has only streams of events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from functools import wraps
from typing import Any, ParamSpec, Protocol, Self, TypeAlias, TypeVar

from aiohttp import hdrs, web

from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure, describe
from rnn_engine_server.core.handlers import SSE, Event, Long, Piece, Stream, encode_piece
from rnn_engine_server.core.routing import LIFECYCLE, AppKey

P = ParamSpec("P")
T = TypeVar("T")


class Clock(Protocol):
    """The interface by which streams measure silence. An event loop has it."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle: ...


CLOCK: AppKey[Clock] = AppKey("clock")
"""What streams measure silence by, in place of the event loop."""

HEADERS_SECONDS = 0.5
"""After how long a stream's headers are sent that has no event yet. An error before has a status of its own."""

SILENCE_SECONDS = 10.0
"""How long an open stream may be silent before something without a meaning is sent, so that proxies do not end it."""


class _Sender:
    """Sends a stream as the response to the request of a call.

    It is an async context manager. Within it, the headers are sent by `open`, or if that does not come soon; then
    what breaks a silence of the stream is sent whenever nothing else has been written for a while.
    """

    def __init__(self, call: Call, stream: Stream) -> None:
        self._call = call
        self._stream = stream
        self._clock = call.app.get(CLOCK) or asyncio.get_running_loop()
        self._last = 0.0  # when something was written
        self._is_watched = stream.form is not None
        self._num_writing = 0  # writes that wait for the client
        self._timer: asyncio.TimerHandle | None = None
        self._filling: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        live = {} if stream.form is None else {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        kind = stream.content_type if stream.form is None else stream.form.content_type
        self._response = web.StreamResponse(headers={"Content-Type": kind, **live, **stream.headers})
        self._response.content_length = stream.num_bytes

    async def __aenter__(self) -> Self:
        self._watch(HEADERS_SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def open(self) -> None:
        """Send the response's headers, unless that was done. From now on an error can only be sent as an event."""
        async with self._opening:
            if not self._response.prepared:
                await self._response.prepare(self._call.request)
                self._last = self._clock.time()
                self._watch(SILENCE_SECONDS)

    async def is_too_late_for_status(self) -> bool:
        """Return True if the headers are sent; if not, they will not be sent by themselves any more."""
        await self._stop()
        return self._response.prepared

    async def write(self, piece: Piece) -> None:
        """Send a piece to the client, after the headers, and wait if the client reads slowly.

        Raises ConnectionError if the client has disconnected.
        """
        await self._send(await encode_piece(self._call, self._stream.form, piece))

    async def _send(self, piece: bytes | memoryview) -> None:
        await self.open()
        if piece:
            self._last = self._clock.time()
            self._num_writing += 1
            try:
                await self._response.write(piece)
            finally:
                self._num_writing -= 1

    async def close(self) -> web.StreamResponse:
        """End the stream's response and return it."""
        await self._stop()
        await self.open()
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
                form, make = self._stream.form, self._stream.keep_alive
                assert form is not None
                await self._send(form.ping if make is None else form.encode([make()]))
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


async def send_stream(call: Call, stream: Stream) -> web.StreamResponse:
    """Send a stream as the response to the request of a call. Raises ConnectionError if the client has left."""
    async with aclosing(stream.pieces), _Sender(call, stream) as sender:
        if call.request.method != hdrs.METH_HEAD:
            sending = deliver(call, stream, sender.write, sender.is_too_late_for_status)
            await (_until_closing(call, sending, stream.max_seconds) if stream.ends_with_server else sending)
        try:
            async with asyncio.timeout(None if stream.max_seconds is None else _CLOSE_SECONDS):
                return await sender.close()
        except TimeoutError as error:
            raise ConnectionAbortedError("the client did not take the end of the stream") from error


Write: TypeAlias = Callable[[Piece], Awaitable[None]]


async def deliver(call: Call, stream: Stream, write: Write, is_late: Callable[[], Awaitable[bool]]) -> Failure | None:
    """Pass each piece of a stream to `write`, and return the failure that the last one reports, if it reports one.

    Raises an error unless `is_late` returns True: the answer has begun, so that it can't have a status of its own.
    """
    try:
        async with aclosing(stream.pieces):
            async for piece in stream.pieces:
                await write(piece)
    except ConnectionError:
        raise
    except Exception as error:
        if stream.form is None or not await is_late():
            raise
        failure = describe(error)

        def told() -> list[Event]:
            event = None if stream.failure is None else stream.failure(failure)
            return [event or call.route.error_form(failure)[1]]

        await write(Long(call.lease.num_bytes, told))
        return failure
    return None


async def _until_closing(call: Call, sending: Coroutine[Any, Any, object], seconds: float | None) -> None:
    """Run `sending` until it ends, the server takes no more requests, or `seconds` are over.

    Raises what it raises.
    """
    running = asyncio.create_task(sending)
    closing = asyncio.create_task(call.app[LIFECYCLE].wait_closing())
    try:
        await asyncio.wait((running, closing), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        await cancel_tasks(running, closing)


# Streams that report the current status again and again.

_CLOSE_SECONDS = 1.0  # for a client to take the end of such a stream


async def repeated(call: Call, seconds: float, make: Callable[[], Awaitable[Mapping[str, object]]]) -> Stream:
    """Return a stream of status events: what `make` returns at once and then every `seconds`, each as JSON.

    The stream ends when the server takes no more requests, so that it does not delay a stop, or when the time of a
    request is up (`max_request_seconds`).
    """

    async def events() -> AsyncGenerator[list[Event], None]:
        while True:
            yield [await make()]
            await asyncio.sleep(seconds)

    return Stream(events(), SSE, ends_with_server=True, max_seconds=call.limits.max_request_seconds)


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
