"""Read request bodies and encode answers, within bounds on memory and without blocking the event loop."""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import math
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import quote

import pydantic_core
from aiohttp import hdrs, web
from aiohttp.compression_utils import ZLibDecompressor
from aiohttp.typedefs import Handler
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, OverloadedError, StorageError
from rnn_engine_server.core.routing import SETTINGS, route_of
from rnn_engine_server.core.schema import RequestBody, UnknownFields
from rnn_engine_server.core.workers import SHORT_WORK, work
from rnn_engine_server.models.registry import MODEL_USE

FREE_BYTES = 1 << 16
"""Bytes that each request may hold without being counted, so that small requests run while large ones take all the
memory.
"""

_HELD_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)
_VALUE_BYTES = {b",": 48, b":": 150, b"{": 100, b"[": 80}  # about what Python needs for the value after the character


def parsed_bytes(data: bytes | bytearray) -> int:
    """Estimate how many bytes of memory a JSON text will take once parsed.

    Commas and brackets in strings count too, as if they separated values.
    """
    return 2 * len(data) + sum(num_bytes * data.count(character) for character, num_bytes in _VALUE_BYTES.items())


class MemoryBudget:
    """A budget for the memory that all running requests together use for their bodies. For one event loop."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0

    @property
    def most_each(self) -> int:
        """The most bytes of the budget that one request may hold."""
        return self.capacity // 2 + FREE_BYTES

    @contextmanager
    def lease(self) -> Iterator[MemoryLease]:
        """Count one request's memory during a `with` block, whose end returns all of it to the budget."""
        lease = MemoryLease(self)
        try:
            yield lease
        finally:
            lease.hold(0)


class MemoryLease:
    """The memory that one request holds, counted in a memory budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.num_bytes = 0
        self._counted = 0

    def hold(self, num_bytes: int) -> None:
        """Set the number of bytes that the request holds in total to `num_bytes`.

        Raises OverloadedError if the budget has no room.
        """
        counted = max(num_bytes - FREE_BYTES, 0)
        held = self.budget.held + counted - self._counted
        if counted > self._counted and held > self.budget.capacity:
            raise OverloadedError(
                f"requests hold {self.budget.held} bytes of memory, and this one needs {counted - self._counted} more; "
                f"expected at most {self.budget.capacity} (max_held_bytes)",
                retry_after=_HELD_RETRY_SECONDS,
            )
        self.num_bytes, self.budget.held, self._counted = num_bytes, held, counted


T = TypeVar("T")


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
        if not await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(manager.__exit__, None, None, None)


# The keys under which the application and each request hold the memory budget and unknown fields.

BUDGET = web.AppKey("budget", MemoryBudget)
LEASE = web.RequestKey("lease", MemoryLease)
LEFT_OUT: web.RequestKey[set[str]] = web.RequestKey("left_out", set)
"""The names of a body's unknown fields and of parts of its JSON schemas: what is ignored. Absent until it is read."""
LOGGED: web.AppKey[set[tuple[str, str]]] = web.AppKey("logged", set)
"""The path and the name of each unknown field that was logged."""


@web.middleware
async def memory_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give each request a `MemoryLease` as `request[LEASE]`, which ends with the request."""
    with request.app[BUDGET].lease() as lease:
        request[LEASE] = lease
        return await handler(request)


# Read the bodies of requests, and write those of answers.
#
# A body is read piece by piece. Each piece is counted in the server's memory budget before the next one is awaited, so
# that all clients together can't send more than the server holds.

Body = TypeVar("Body", bound=RequestBody)

_LEFT_OUT_HEADER, _MOST_NAMES, _MOST_NAME = "X-Left-Out", 20, 80
_MOST_LOGGED = 1000  # names of unknown fields
_PIECE_ITEMS = 1024  # items of a list that are encoded at a time
_WRITE_BYTES = 1 << 20  # bytes that are written to a file at a time


async def read_body(request: web.Request, kind: type[Body], text: bytearray | None = None) -> Body:
    """Read and check the JSON body of a request, and choose the model that the body, or else the query, names.

    The body as it came is appended to `text`, which is empty.

    Raises InvalidRequestError for a body that `kind` does not allow, ModelNotFoundError if there is no such model, and
    UnavailableError if it can't be loaded. Raises OverloadedError if requests hold too much memory, and an aiohttp
    exception if the body can't be read or is too large.
    """
    limits, lease = request.app[SETTINGS].limits, request[LEASE]
    data = bytearray() if text is None else text
    async for piece in _receive(request, limits.max_body_bytes):
        data += piece
    if data.startswith(codecs.BOM_UTF8):
        del data[: len(codecs.BOM_UTF8)]
    num_parsed = await work(request, len(data), partial(parsed_bytes, data))
    hold_more(request, "the body", num_parsed)
    unknown = UnknownFields(refuse=request.app[SETTINGS].strict)
    body = await work(request, len(data), partial(kind.parse, data, limits, unknown))
    request[LEFT_OUT] = unknown.left_out
    _log_left_out(request, unknown.left_out)
    lease.hold(num_parsed)
    if (use := request.get(MODEL_USE)) is not None:
        await use.choose(getattr(body, "model", None) or request.query.get("model"))
    return body


def _log_left_out(request: web.Request, names: set[str]) -> None:
    """Log the unknown fields of a body, each once for its path."""
    logged = request.app[LOGGED]
    new = [name for name in sorted(names) if (request.path, name[:_MOST_NAME]) not in logged]
    if new and len(logged) < _MOST_LOGGED:
        logged.update((request.path, name[:_MOST_NAME]) for name in new[:_MOST_NAMES])
        shown = ", ".join(repr(name[:_MOST_NAME]) for name in new[:_MOST_NAMES])
        _log.info("%s: left out %s, which this server does not have; not logged again", request.path, shown)


def hold_more(request: web.Request, what: str, num_bytes: int) -> None:
    """Add `num_bytes` to the memory that the request holds. `what` names their use in errors.

    Raises OverloadedError if requests hold too much memory, and an aiohttp exception if one request may not hold as
    much.
    """
    lease = request[LEASE]
    if num_bytes > lease.budget.most_each:
        raise _too_large(f"{what} would take about {num_bytes} bytes of memory", lease.budget.most_each)
    lease.hold(lease.num_bytes + num_bytes)


async def tell_left_out(request: web.Request, response: web.StreamResponse) -> None:
    """Add to an answer a header that lists what was ignored: unknown fields, and parts of JSON schemas.

    A handler of aiohttp's signal `on_response_prepare`.
    """
    names = sorted(request.get(LEFT_OUT, ()))
    if names:
        response.headers[_LEFT_OUT_HEADER] = ", ".join(quote(_shortened(name)) for name in names[:_MOST_NAMES])


def _shortened(name: str) -> str:
    """Return `name`, without its middle if it is long: the end of a place in a schema says what is meant."""
    return name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME // 2]}...{name[3 - _MOST_NAME // 2 :]}"


async def receive_file(request: web.Request, path: Path) -> None:
    """Write the request's body to the file `path`.

    Raises StorageError if the file can't be written, OverloadedError if requests hold too much memory, and an aiohttp
    exception if the body can't be read or is too large.
    """
    with storage_errors("the upload can't be written to the disk"), path.open("wb") as file:
        unwritten = bytearray()
        async for piece in _receive(request, request.app[SETTINGS].limits.max_upload_bytes):
            unwritten += piece
            if len(unwritten) >= _WRITE_BYTES:
                await asyncio.to_thread(file.write, bytes(unwritten))
                unwritten.clear()
        await asyncio.to_thread(file.write, bytes(unwritten))
        await asyncio.to_thread(file.flush)


@contextmanager
def storage_errors(message: str) -> Iterator[None]:
    """Return a context manager that turns errors of the disk into a StorageError that begins with `message`."""
    try:
        yield
    except ConnectionError:
        raise  # the client has left
    except OSError as error:
        raise StorageError(f"{message}: {error.strerror}") from error


async def _receive(request: web.Request, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of `body_pieces`, and count each in the request's memory."""
    received = 0
    async for piece in body_pieces(request, most):
        received += len(piece)
        request[LEASE].hold(received)
        yield piece


async def body_pieces(request: web.Request, most: int) -> AsyncGenerator[bytes, None]:
    """Yield a request's body piece by piece, as it was before its Content-Encoding.

    The body may have `most` bytes, or fewer if its route says so. Raises an aiohttp exception if it has more or can't
    be read.
    """
    route = route_of(request)
    most = most if route is None else route.most_body_bytes(most)
    if request.content_length is not None and request.content_length > most:
        raise _too_large(f"the body has {request.content_length} bytes", most)
    decode = _decoder(request)
    sent = received = 0
    try:
        async for piece in request.content.iter_any():
            sent += len(piece)
            if sent > most:
                raise _too_large(f"the body has {sent} bytes or more", most)
            async for decoded in decode(piece):
                received += len(decoded)
                if received > most:
                    raise _too_large(f"the body has {received} bytes or more", most)
                yield decoded
    except web.RequestPayloadError as error:
        # The next request on this connection can't be found: it is unknown at which byte it begins.
        raise web.HTTPBadRequest(text=f"the body can't be read: {error}", headers={hdrs.CONNECTION: "close"}) from error


_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_DECODED_BYTES = 1 << 16  # at most that a piece of a body becomes at a time, so that its memory is counted before more


def _decoder(request: web.Request) -> Callable[[bytes], AsyncIterator[bytes]]:
    """Return a function that decodes the next piece of a request's body. Raises an aiohttp exception if there is none.

    aiohttp's own decoding does not serve here: it runs on the event loop, and for bodies that nobody reads, too.
    """
    transfer = ", ".join(request.headers.getall(hdrs.TRANSFER_ENCODING, ("chunked",)))
    if transfer.strip().lower() != "chunked":
        headers = {hdrs.CONNECTION: "close"}
        raise web.HTTPNotImplemented(text=f"Transfer-Encoding: {transfer!r}; expected 'chunked'", headers=headers)
    content = ", ".join(request.headers.getall(hdrs.CONTENT_ENCODING, ()))
    codings = [coding for each in content.split(",") if (coding := each.strip().lower()) not in ("", "identity")]
    if not codings:
        return _as_it_is
    if len(codings) > 1 or codings[0] not in _CODINGS:
        text = f"Content-Encoding: {content!r}; expected 'gzip', 'deflate' or a body that is not compressed"
        raise web.HTTPUnsupportedMediaType(text=text, headers={hdrs.ACCEPT_ENCODING: "gzip, deflate"})
    coding, inflater = _CODINGS[codings[0]], None

    async def inflate(piece: bytes) -> AsyncIterator[bytes]:
        nonlocal inflater
        if inflater is None:
            is_raw = coding == "deflate" and piece[0] & 0xF != 8  # without zlib's header, as some clients send it
            inflater = ZLibDecompressor(coding, suppress_deflate_header=is_raw)
        size = len(piece)
        while True:
            try:
                decoded = await work(request, size, partial(inflater.decompress_sync, piece, _DECODED_BYTES))
            except (ValueError, zlib.error) as error:
                message = f"the body can't be decoded; expected one with its Content-Encoding: {content}"
                raise web.HTTPBadRequest(text=message) from error
            yield decoded
            if len(decoded) < _DECODED_BYTES:
                return
            piece, size = b"", _DECODED_BYTES

    return inflate


async def _as_it_is(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


def _too_large(found: str, most: int) -> web.HTTPRequestEntityTooLarge:
    return web.HTTPRequestEntityTooLarge(most, most, text=f"{found}; expected at most {most}")


def to_json(body: object) -> bytes:
    """Return `body` as compact JSON. Raises ValueError for numbers that JSON does not have: NaN and infinities."""
    encoded = pydantic_core.to_json(body)
    if b"NaN" in encoded or b"Infinity" in encoded:  # in a text, or as the value of a number
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return encoded


def _encode_pieces(value: object, depth: int = 5) -> Iterator[bytes]:
    """Yield the JSON text of a value in pieces, so that other threads run between them.

    The text is that of `to_json`. Long lists are divided down to `depth` levels of objects and lists.
    """
    if isinstance(value, Mapping) and depth:
        yield b"{"
        for number, (name, part) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if number else b"", to_json(name))
            yield from _encode_pieces(part, depth - 1)
        yield b"}"
    elif isinstance(value, list) and depth and value and isinstance(value[0], Mapping | list):
        for number, item in enumerate(value):
            yield b"," if number else b"["
            yield from _encode_pieces(item, depth - 1)
        yield b"]"
    elif isinstance(value, list) and len(value) > _PIECE_ITEMS:
        for start in range(0, len(value), _PIECE_ITEMS):
            yield b"," if start else b"["
            yield to_json(value[start : start + _PIECE_ITEMS])[1:-1]
        yield b"]"
    else:
        yield to_json(value)


async def long_json_response(request: web.Request, size: int, make: Callable[[], object]) -> web.Response:
    """Return a response with the JSON of the value that `make` returns.

    A large answer is made and encoded on a worker thread; see `work` for `size`.
    """

    def encode() -> bytes:
        return b"".join(_encode_pieces(make())) if size > SHORT_WORK else to_json(make())

    return encoded_response(await work(request, size, encode))


def encoded_response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response with `body`, which is JSON that is encoded already."""
    return web.Response(body=body, status=status, headers=headers, content_type="application/json", charset="utf-8")


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Encode `body` as JSON and return a response with it."""
    return encoded_response(to_json(body), status, headers)


def query_count(request: web.Request, name: str, default: int, most: int) -> int:
    """Return the whole number in the query parameter `name`, or `default` if the parameter is missing.

    Raises InvalidRequestError unless it is from 0 to `most`.
    """
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= most):
        raise InvalidRequestError(name, text, f"a whole number from 0 to {most}")
    return int(text)


def query_page(request: web.Request, items: Mapping[str, T], default: int, most: int) -> tuple[list[T], bool]:
    """Return the page of `items` that the query's `order`, `after` and `limit` select, and whether more come after it.

    `items` are by id, the oldest first. Without `limit` the page has `default` items. Raises InvalidRequestError.
    """
    order, after = query_word(request, "order", ("asc", "desc"), "desc"), request.query.get("after")
    if after is not None and after not in items:
        raise InvalidRequestError("after", after, "the id of an item in this list")
    ids = list(items)[:: 1 if order == "asc" else -1]
    start = 0 if after is None else ids.index(after) + 1
    limit = query_count(request, "limit", default, most)
    return [items[each] for each in ids[start : start + limit]], start + limit < len(ids)


def query_word(request: web.Request, name: str, words: Sequence[T], default: T) -> T:
    """Return the query parameter `name`, one of some `words`, or `default` if the parameter is missing.

    Raises InvalidRequestError.
    """
    given = request.query.get(name)
    if given is None:
        return default
    for word in words:
        if word == given:
            return word
    allowed = list(map(str, words))
    raise InvalidRequestError(name, given, " or ".join(allowed) if len(words) == 2 else f"one of {', '.join(allowed)}")


class PageEnds(TypedDict):
    """The ends of a page of a list, in OpenAI's form."""

    first_id: str | None
    last_id: str | None
    has_more: bool


class Listed(Protocol):
    """What a list has, under its id."""

    @property
    def id(self) -> str: ...


def page_ends(page: Sequence[Listed], *, has_more: bool) -> PageEnds:
    """Return the ids of the first and the last item of `page`, and whether more come after it."""
    return {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None, "has_more": has_more}


def query_seconds(request: web.Request, name: str, default: float, least: float, most: float) -> float:
    """Return the number of seconds in the query parameter `name`, or `default` if the parameter is missing.

    Raises InvalidRequestError unless it is from `least` to `most`.
    """
    text = request.query.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= most:
        raise InvalidRequestError(name, text, f"a number of seconds from {least:g} to {most:g}")
    return seconds
