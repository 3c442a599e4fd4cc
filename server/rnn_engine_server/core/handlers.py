"""Routes that are declared at their handlers: the annotations of a handler say which body it takes and what it answers.

A handler takes the `Call` and, if it has a second parameter, the checked body; a GET has none, so the parameter's
default stands for it. It returns an object, which is sent as JSON, or one of the answers here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, Generic, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_args, get_origin

from aiohttp import hdrs, web

from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import encode_pieces, to_json
from rnn_engine_server.core.call import SHORT_WORK, Call, work
from rnn_engine_server.core.errors import ErrorForm, Failure, describe
from rnn_engine_server.core.routing import EVENTS, JSON, LIFECYCLE, AppKey, Kind, Route
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.core.tasks import cancel_tasks

T = TypeVar("T")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Awaitable[object]])


class Facts(TypedDict, total=False):
    """What a route says beside its path. The attributes of `Route` have the meanings."""

    summary: str  # in place of the handler's docstring
    answer: Kind | None  # the type of the answer, if the handler returns an encoded one or a stream
    keeps_text: bool
    form: type[RequestBody]
    chunk: Kind
    content_type: str
    stream_type: str
    also_answers: Mapping[int, Kind]
    query: Mapping[str, str]
    scope: Scope
    routine: bool
    always: bool
    is_page: bool
    changes_by_get: bool
    uses_model: bool
    error_form: ErrorForm


class RouteTable:
    """The routes of one module, in the order of their handlers.

    Its methods are decorators of handlers. They take the paths, the main one first, and what differs from the `facts`
    that all routes of the table share. The docstring of a handler is its route's summary in the documentation.
    """

    def __init__(self, **facts: Unpack[Facts]) -> None:
        self._shared = facts
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def get(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_GET, path, *also, **facts)

    def post(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_POST, path, *also, **facts)

    def put(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_PUT, path, *also, **facts)

    def delete(self, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        return self.add(hdrs.METH_DELETE, path, *also, **facts)

    def add(self, method: str, path: str, *also: str, **facts: Unpack[Facts]) -> Callable[[Function], Function]:
        """Return a decorator that adds a handler's route for `method` and leaves the handler as it is."""

        def decorate(handler: Function) -> Function:
            self._routes.append(_make_route(method, path, also, handler, {**self._shared, **facts}))
            return handler

        return decorate


def _make_route(
    method: str, path: str, also: tuple[str, ...], handler: Callable[..., Awaitable[object]], facts: Mapping[str, Any]
) -> Route:
    of_handler = signature(handler, eval_str=True)
    parameters: list[Parameter] = list(of_handler.parameters.values())
    body = parameters[1].annotation if len(parameters) > 1 and method != hdrs.METH_GET else None
    kind = of_handler.return_annotation
    answer = get_args(kind)[0] if get_origin(kind) is Long else kind
    found = {"answer": answer, "summary": " ".join((handler.__doc__ or "").split()), **facts}
    return Route(method, path, handler, also=also, request=body, response=found.pop("answer"), **found)


# What handlers return.

JSON_TEXT = f"{JSON}; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer that is encoded already."""

    body: bytes
    content_type: str = JSON_TEXT
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Self:
        """Encode `body` as JSON."""
        return cls(to_json(body), status=status, headers=headers or {})


@dataclass(frozen=True, slots=True)
class Long(Generic[T]):
    """An answer that may take long to make and to encode, so a worker thread does both. See `work` for `size`.

    `then` is awaited when it is made, before it is sent.
    """

    size: int
    make: Callable[[], T]
    then: Callable[[], Awaitable[None]] | None = None

    async def made(self, call: Call, use: Callable[[T], R]) -> R:
        """Make the answer, and return what `use` makes of it on the same thread."""
        made = await work(call, self.size, lambda: use(self.make()))
        if self.then is not None:
            await self.then()
        return made


class TextFrame:
    """Events that differ only in one text. What is before and after the text is encoded once."""

    def __init__(self, make: Callable[[str], Mapping[str, object]]) -> None:
        """`make` returns the event with a text in it."""
        self._before, _, self._after = to_json(make(_PLACE)).partition(to_json(_PLACE))

    def encode(self, text: str) -> bytes:
        """Return the JSON of the event with this text."""
        return self._before + encode_basestring(text).encode() + self._after


_PLACE = uuid.uuid4().hex  # stands for a text before it is known

Event: TypeAlias = Mapping[str, object] | tuple[TextFrame, str] | str
"""What a stream tells: an object, one with a text in a frame, or a word such as `DONE` that is sent as it is."""

DONE = "[DONE]"
"""The event that ends a stream. By it clients know that nothing is missing."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How the events of a stream become bytes.

    `frame` is a template of bytes for the JSON of an event. For an event that `name` gives a name to, it is
    `named_frame`, which has the name, too. `ping` breaks a long silence if the stream has nothing else for that.
    """

    content_type: str
    frame: bytes
    ping: bytes = b""
    name: Callable[[Mapping[str, object]], object] | None = None

    def encode(self, events: Iterable[Event]) -> bytes:
        """Return the bytes of some events."""
        return b"".join(map(self._encode, events))

    def _encode(self, event: Event) -> bytes:
        match event:
            case str():
                return self.frame % event.encode()
            case (frame, text):
                return self.frame % frame.encode(text)
        body = self.frame % to_json(event)
        return body if self.name is None else b"event: %b\n%b" % (str(self.name(event)).encode(), body)


SSE = StreamForm(f"{EVENTS}; charset=utf-8", b"data: %b\n\n", b": ping\n\n")
"""Server-sent events without names."""
TYPED_SSE = replace(SSE, name=itemgetter("type"))
"""Server-sent events that are called what their field `type` says."""
LINES = StreamForm("application/x-ndjson", b"%b\n")
"""Lines of JSON."""

Piece: TypeAlias = bytes | memoryview | Sequence[Event] | Long[Iterable[Event]]
"""A part of a stream: bytes, or events that are written together."""


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer in pieces, which are sent as they come.

    The first piece, which may be empty, opens it: an error before has a status of its own. With a `form` the pieces may
    be events, a later error becomes the event that `failure` returns or else the body of the route's errors, and the
    event that `keep_alive` returns, or else the form's ping, breaks a long silence. Without a form a later error cuts
    the answer.
    """

    pieces: AsyncGenerator[Piece, None]
    form: StreamForm | None = None
    keep_alive: Callable[[], Event] | None = None
    failure: Callable[[Failure], Event | None] | None = None
    content_type: str = ""  # without a form
    headers: Mapping[str, str] = field(default_factory=dict)
    num_bytes: int | None = None  # of all pieces
    ends_with_server: bool = False  # so that it does not delay a stop
    max_seconds: float | None = None  # after which it ends


Answer: TypeAlias = Encoded | Long[Any] | Stream


async def encode(call: Call, answer: object) -> tuple[bytes, object]:
    """Return the JSON of an answer, and the object that it was made of."""
    if not isinstance(answer, Long):
        return to_json(answer), answer

    def encode(made: object) -> tuple[bytes, object]:
        return b"".join(encode_pieces(made)) if answer.size > SHORT_WORK else to_json(made), made

    return await answer.made(call, encode)


async def encode_piece(call: Call, form: StreamForm | None, piece: Piece) -> bytes | memoryview:
    """Return the bytes of a piece of a stream. Only a stream with a form may have events."""
    if isinstance(piece, bytes | memoryview):
        return piece
    assert form is not None
    return await piece.made(call, form.encode) if isinstance(piece, Long) else form.encode(piece)


# Streams of events are never silent for long. Others report a status at regular intervals.
#
# aiohttp-sse does not serve here: it starts a task of pings for every stream, and has only streams of events.


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
