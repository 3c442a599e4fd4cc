"""What handlers return: an object that is sent as JSON, or one of the answers here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeAlias, TypeVar

from rnn_engine_server.core.bodies import encode_pieces, to_json
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.routing import EVENTS, JSON
from rnn_engine_server.core.schema import Usage
from rnn_engine_server.core.workers import SHORT_WORK, work

T = TypeVar("T")

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


def _failure_event(failure: Failure) -> bytes:
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
    """An answer in pieces, which are sent as they come: server-sent events, unless its content type says otherwise.

    The first piece, which may be empty, opens it: an error before has a status of its own, a later one becomes the
    piece that `failure` makes, if there is one. `keep_alive` makes what breaks a long silence; None = nothing does.
    """

    pieces: AsyncGenerator[bytes | memoryview, None]
    content_type: str = EVENT_STREAM
    keep_alive: Callable[[], bytes] | None = comment
    failure: Callable[[Failure], bytes] | None = _failure_event
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
