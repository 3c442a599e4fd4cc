"""Routes that are declared at their handlers: the annotations of a handler say which body it takes and what it answers.

A handler takes the `Call` and, if it has a second parameter, the checked body. It returns an object, which is sent as
JSON, or one of the answers here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, Generic, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_args, get_origin

from aiohttp import hdrs

from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import encode_pieces, to_json
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import ErrorForm, Failure
from rnn_engine_server.core.routing import EVENTS, JSON, Kind, Route
from rnn_engine_server.core.schema import RequestBody, Usage
from rnn_engine_server.core.workers import SHORT_WORK, work

T = TypeVar("T")
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
    body = parameters[1].annotation if len(parameters) > 1 else None
    kind = of_handler.return_annotation
    answer = get_args(kind)[0] if get_origin(kind) is Long else kind
    found = {"answer": answer, "summary": " ".join((handler.__doc__ or "").split()), **facts}
    return Route(method, path, handler, also=also, request=body, response=found.pop("answer"), **found)


# What handlers return.

JSON_TEXT = f"{JSON}; charset=utf-8"
EVENT_STREAM = f"{EVENTS}; charset=utf-8"
"""The Content-Type of a stream of server-sent events."""

DONE = b"data: [DONE]\n\n"
"""The event that ends a stream. By it clients know that nothing is missing."""


def encode_event(body: Mapping[str, object], name: str | None = None) -> bytes:
    """Encode one server-sent event that has `body` as JSON, and the event name `name` if given."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return b"%bdata: %b\n\n" % (head, to_json(body))


def comment() -> bytes:
    """Return a comment of a stream of server-sent events, which clients skip."""
    return b": ping\n\n"


def failure_event(failure: Failure) -> bytes:
    """Return the last event of a stream that fails."""
    return encode_event(failure.body)


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


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer in pieces, which are sent as they come.

    The first piece, which may be empty, opens it: an error before has a status of its own. A later one becomes the
    piece that `failure` makes; without `failure` it cuts the answer. `keep_alive` makes what breaks a long silence.
    """

    pieces: AsyncGenerator[bytes | memoryview, None]
    content_type: str
    keep_alive: Callable[[], bytes] | None = None
    failure: Callable[[Failure], bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    num_bytes: int | None = None  # of all pieces
    usage: Usage | None = None  # if it is the pieces of an object that tells it
    ends_with_server: bool = False  # so that it does not delay a stop
    max_seconds: float | None = None  # after which it ends


Answer: TypeAlias = Encoded | Long[Any] | Stream


async def encode(call: Call, answer: object) -> tuple[bytes, object]:
    """Return the JSON of an answer, and the object that it was made of."""
    if not isinstance(answer, Long):
        return to_json(answer), answer

    def make() -> tuple[bytes, object]:
        made = answer.make()
        return b"".join(encode_pieces(made)) if answer.size > SHORT_WORK else to_json(made), made

    encoded = await work(call, answer.size, make)
    if answer.then is not None:
        await answer.then()
    return encoded
