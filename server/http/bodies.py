"""Read the bodies of requests, and write those of answers.

A body is read piece by piece, and each piece is counted in the server's budget of memory before the next one is
waited for, so that clients together can't send more than the server holds.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from json import dumps
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import quote

from aiohttp import hdrs, web

from rnn_engine.errors import StorageError
from server.http.context import LEASE, LEFT_OUT, MODEL_USE, SETTINGS
from server.http.memory import parsed_bytes
from server.http.routing import route_of
from server.http.work import SHORT_WORK, work
from server.schemas.base import RequestBody, UnknownFields

Body = TypeVar("Body", bound=RequestBody)

_LEFT_OUT_HEADER, _MOST_NAMES, _MOST_NAME = "X-Left-Out", 20, 80
_PIECE_ITEMS = 1024  # of a list that are encoded at a time
_WRITE_BYTES = 1 << 20  # that are written to a file at a time


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """Return the JSON body as an object, and choose the model that it names, or else the query.

    Raises ModelNotFoundError or UnavailableError where there is no such model or it can't be loaded,
    InvalidRequestError, OverloadedError where requests hold too much memory, or an aiohttp exception if the
    body can't be read or is too large.
    """
    limits, lease = request.app[SETTINGS].limits, request[LEASE]
    data = bytearray()
    async for piece in _receive(request, limits.max_body_bytes):
        data += piece
    num_parsed = await work(request, len(data), partial(parsed_bytes, data))
    hold_more(request, "the body", num_parsed)
    unknown = UnknownFields(refuse=request.app[SETTINGS].strict)
    body = await work(request, len(data), partial(kind.parse, data, limits, unknown))
    request[LEFT_OUT] = unknown.left_out
    lease.hold(num_parsed)
    if (use := request.get(MODEL_USE)) is not None:
        await use.choose(getattr(body, "model", None) or request.query.get("model"))
    return body


def hold_more(request: web.Request, what: str, num_bytes: int) -> None:
    """Hold `num_bytes` of memory more from now on, for `what`. Raises as `read_body` does."""
    lease = request[LEASE]
    if num_bytes > lease.budget.most_each:
        raise _too_large(f"{what} would take about {num_bytes} bytes of memory", lease.budget.most_each)
    lease.hold(lease.num_bytes + num_bytes)


async def tell_left_out(request: web.Request, response: web.StreamResponse) -> None:
    """Name the fields of the body that nothing knows in a header of the answer. A signal handler of aiohttp's."""
    names = sorted(request.get(LEFT_OUT, ()))
    if names:
        response.headers[_LEFT_OUT_HEADER] = ", ".join(quote(name[:_MOST_NAME]) for name in names[:_MOST_NAMES])


@asynccontextmanager
async def received_file(request: web.Request) -> AsyncIterator[Path]:
    """Write the body to a temporary file, which is removed after the block. Raises as `read_body` and StorageError."""
    with _storage_errors():
        folder = tempfile.TemporaryDirectory(prefix="rnn-engine-", ignore_cleanup_errors=True)
    with folder as name:
        path = Path(name) / "upload"
        with _storage_errors(), path.open("wb") as file:
            await _write(request, file)
        yield path


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except ConnectionError:
        raise  # of the client's
    except OSError as error:
        raise StorageError(f"the upload can't be written to a temporary file: {error.strerror}") from error


async def _write(request: web.Request, file: BinaryIO) -> None:
    unwritten = bytearray()
    async for piece in _receive(request, request.app[SETTINGS].limits.max_upload_bytes):
        unwritten += piece
        if len(unwritten) >= _WRITE_BYTES:
            await asyncio.to_thread(file.write, bytes(unwritten))
            unwritten.clear()
    await asyncio.to_thread(file.write, bytes(unwritten))
    await asyncio.to_thread(file.flush)


async def _receive(request: web.Request, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the body piece by piece, each of which is held from then on; it may have `most` bytes, or what the route
    says."""
    route = route_of(request)
    most = most if route is None else route.most_body_bytes(most)
    if request.content_length is not None and request.content_length > most:
        raise _too_large(f"the body has {request.content_length} bytes", most)
    received = 0
    try:
        async for piece in request.content.iter_any():
            received += len(piece)
            if received > most:
                raise _too_large(f"the body has {received} bytes or more", most)
            request[LEASE].hold(received)
            yield piece
    except web.RequestPayloadError as error:
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
        message = f"the body can't be read; expected one with the Content-Encoding that it claims: {encoding}"
        # Where the next request begins is unknown.
        raise web.HTTPBadRequest(text=message, headers={hdrs.CONNECTION: "close"}) from error


def _too_large(found: str, most: int) -> web.HTTPRequestEntityTooLarge:
    return web.HTTPRequestEntityTooLarge(most, most, text=f"{found}; expected at most {most}")


def to_json(body: object) -> str:
    """Return `body` as compact JSON. Raises ValueError for numbers that JSON does not have: NaN and infinities."""
    return _encode(body)


def _encode(value: object) -> str:
    return dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _encode_pieces(value: object, depth: int = 5) -> Iterator[str]:
    """Yield `value` as `to_json` writes it, in pieces, between which other threads run. The lists lie `depth` deep."""
    if isinstance(value, Mapping) and depth:
        yield "{"
        for number, (name, part) in enumerate(value.items()):
            yield f"{',' if number else ''}{dumps(name)}:"
            yield from _encode_pieces(part, depth - 1)
        yield "}"
    elif isinstance(value, list) and len(value) > _PIECE_ITEMS:
        for start in range(0, len(value), _PIECE_ITEMS):
            yield "," if start else "["
            yield _encode(value[start : start + _PIECE_ITEMS])[1:-1]
        yield "]"
    elif isinstance(value, list) and depth:
        yield "["
        for number, item in enumerate(value):
            yield "," if number else ""
            yield from _encode_pieces(item, depth - 1)
        yield "]"
    else:
        yield _encode(value)


async def long_json_response(request: web.Request, size: int, make: Callable[[], object]) -> web.Response:
    """Return an answer that holds what `make` gives as JSON; see `work` for `size`."""

    def encode() -> bytes:
        pieces = _encode_pieces(make()) if size > SHORT_WORK else (to_json(make()),)
        return "".join(pieces).encode()

    return encoded_response(await work(request, size, encode))


def encoded_response(body: bytes) -> web.Response:
    """Return an answer that holds `body`, which is JSON."""
    return web.Response(body=body, content_type="application/json", charset="utf-8")


def json_response(
    body: Mapping[str, object] | Sequence[Mapping[str, object]],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """Return an answer that holds `body` as JSON."""
    return web.json_response(body, status=status, headers=headers, dumps=to_json)
