"""Read request bodies and encode answers, within bounds on memory and without blocking the event loop."""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import math
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import quote

import numpy as np
import pydantic_core
from aiohttp import hdrs, web
from aiohttp.compression_utils import ZLibDecompressor

from rnn_engine.errors import InvalidRequestError, StorageError
from rnn_engine_server.core.call import Call, parsed_bytes, too_large, work
from rnn_engine_server.core.routing import OPEN_BODY_BYTES, SETTINGS, AppKey
from rnn_engine_server.core.schema import RequestBody, UnknownFields
from rnn_engine_server.core.settings import Limits

_log = logging.getLogger(__name__)
T = TypeVar("T")


# Read the bodies of requests, and write those of answers.
#
# A body is read piece by piece. Each piece is counted in the server's memory budget before the next one is awaited, so
# that all clients together can't send more than the server holds.

Body = TypeVar("Body", bound=RequestBody)
Parse: TypeAlias = Callable[[Limits, UnknownFields], Body]
"""Checks a body by some limits, and collects the names of its unknown fields."""
LOGGED: AppKey[set[tuple[str, str]]] = AppKey("logged", set)
"""The path and the name of each unknown field that was logged."""

_LEFT_OUT_HEADER, _MOST_NAMES, _MOST_NAME = "X-Left-Out", 20, 80
_MOST_LOGGED = 1000  # names of unknown fields
_PIECE_ITEMS = 1024  # items of a list that are encoded at a time
_WRITE_BYTES = 1 << 20  # bytes that are written to a file at a time


async def read_body(call: Call, kind: type[Body]) -> Body:
    """Read the JSON body of a call's request, and return what `accept_body` does.

    Raises also an aiohttp exception if the body can't be read or is too large.
    """
    data = bytearray()
    async for piece in _receive(call, call.limits.max_body_bytes):
        data += piece
    if data.startswith(codecs.BOM_UTF8):
        del data[: len(codecs.BOM_UTF8)]
    if call.route.keeps_text:
        call.text = data
    num_parsed = await work(call, len(data), partial(parsed_bytes, data))
    return await accept_body(call, partial(kind.parse, data), len(data), num_parsed)


async def accept_body(call: Call, parse: Parse[Body], size: int, num_parsed: int) -> Body:
    """Check the body of a call, count it as the call's memory, and choose the model that it or else the query names.

    `parse` checks it and takes `num_parsed` bytes; see `work` for `size`. Raises InvalidRequestError for a body that is
    not allowed, OverloadedError if calls hold too much memory, and RefusalError if one may not hold as much. Raises
    ModelNotFoundError if there is no such model, and UnavailableError if it can't be loaded.
    """
    settings = call.app[SETTINGS]
    call.hold_more("the body", num_parsed)
    unknown = UnknownFields(refuse=settings.strict)
    body = await work(call, size, partial(parse, settings.limits, unknown))
    call.left_out |= unknown.left_out
    _log_left_out(call)
    call.lease.hold(num_parsed)
    if call.use is not None:
        name = getattr(body, "model", None) or call.query.get("model")
        await call.use.choose(name, getattr(body, "cache_salt", None))
    return body


def _log_left_out(call: Call) -> None:
    """Log the unknown fields of a body, each once for its path."""
    logged = call.app[LOGGED]
    new = [name for name in sorted(call.left_out) if (call.path, name[:_MOST_NAME]) not in logged]
    if new and len(logged) < _MOST_LOGGED:
        logged.update((call.path, name[:_MOST_NAME]) for name in new[:_MOST_NAMES])
        shown = ", ".join(repr(name[:_MOST_NAME]) for name in new[:_MOST_NAMES])
        _log.info("%s: left out %s, which this server does not have; not logged again", call.path, shown)


def left_out_headers(call: Call) -> dict[str, str]:
    """Return the header that lists what was ignored, unknown fields and parts of JSON schemas; none if nothing was."""
    names = sorted(call.left_out)[:_MOST_NAMES]
    return {_LEFT_OUT_HEADER: ", ".join(quote(_shortened(name)) for name in names)} if names else {}


def _shortened(name: str) -> str:
    """Return `name`, without its middle if it is long: the end of a place in a schema says what is meant."""
    return name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME // 2]}...{name[3 - _MOST_NAME // 2 :]}"


async def receive_file(call: Call, path: Path) -> None:
    """Write the body of a call's request to the file `path`.

    Raises StorageError if the file can't be written, OverloadedError if requests hold too much memory, and an aiohttp
    exception if the body can't be read or is too large.
    """
    with storage_errors("the upload can't be written to the disk"), path.open("wb") as file:
        unwritten = bytearray()
        async for piece in _receive(call, call.limits.max_upload_bytes):
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


async def _receive(call: Call, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of `body_pieces`, and count each in the call's memory."""
    received = 0
    async for piece in body_pieces(call, most):
        received += len(piece)
        call.lease.hold(received)
        yield piece


async def body_pieces(call: Call, most: int) -> AsyncGenerator[bytes, None]:
    """Yield the body of a call's request piece by piece, as it was before its Content-Encoding.

    The body may have `most` bytes, or fewer if its route says so. Raises RefusalError if it has more, and an aiohttp
    exception if it can't be read.
    """
    request, most = call.request, min(OPEN_BODY_BYTES, most) if call.route.always else most
    if request.content_length is not None and request.content_length > most:
        raise too_large(f"the body has {request.content_length} bytes", most)
    decode = _decoder(call)
    sent = received = 0
    try:
        async for piece in request.content.iter_any():
            sent += len(piece)
            if sent > most:
                raise too_large(f"the body has {sent} bytes or more", most)
            async for decoded in decode(piece):
                received += len(decoded)
                if received > most:
                    raise too_large(f"the body has {received} bytes or more", most)
                yield decoded
    except web.RequestPayloadError as error:
        # The next request on this connection can't be found: it is unknown at which byte it begins.
        raise web.HTTPBadRequest(text=f"the body can't be read: {error}", headers={hdrs.CONNECTION: "close"}) from error


_CODINGS = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_DECODED_BYTES = 1 << 16  # at most that a piece of a body becomes at a time, so that its memory is counted before more


def _decoder(call: Call) -> Callable[[bytes], AsyncIterator[bytes]]:
    """Return a function that decodes the next piece of a request's body. Raises an aiohttp exception if there is none.

    aiohttp's own decoding does not serve here: it runs on the event loop, and for bodies that nobody reads, too.
    """
    sent = call.request.headers
    transfer = ", ".join(sent.getall(hdrs.TRANSFER_ENCODING, ("chunked",)))
    if transfer.strip().lower() != "chunked":
        headers = {hdrs.CONNECTION: "close"}
        raise web.HTTPNotImplemented(text=f"Transfer-Encoding: {transfer!r}; expected 'chunked'", headers=headers)
    content = ", ".join(sent.getall(hdrs.CONTENT_ENCODING, ()))
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
                decoded = await work(call, size, partial(inflater.decompress_sync, piece, _DECODED_BYTES))
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


def to_json(body: object) -> bytes:
    """Return `body`, which may have arrays [any] of f32, as compact JSON.

    Raises ValueError for numbers that JSON does not have: NaN and infinities.
    """
    encoded = pydantic_core.to_json(body, fallback=_numbers)
    if b"NaN" in encoded or b"Infinity" in encoded:  # in a text, or as the value of a number
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_numbers).encode()
    return encoded


def _numbers(vector: object) -> list[float]:
    """Return the numbers of an array of f32, each with nine digits, which are enough to distinguish any two."""
    if not isinstance(vector, np.ndarray):
        raise TypeError(f"{type(vector)} can't be JSON")
    return [float(f"{number:.9g}") for number in vector.tolist()]


def encode_pieces(value: object, depth: int = 5) -> Iterator[bytes]:
    """Yield the JSON text of a value in pieces, so that other threads run between them.

    The text is that of `to_json`. Long lists are divided down to `depth` levels of objects and lists.
    """
    if isinstance(value, Mapping) and depth:
        yield b"{"
        for number, (name, part) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if number else b"", to_json(name))
            yield from encode_pieces(part, depth - 1)
        yield b"}"
    elif isinstance(value, list) and depth and value and isinstance(value[0], Mapping | list | np.ndarray):
        for number, item in enumerate(value):
            yield b"," if number else b"["
            yield from encode_pieces(item, depth - 1)
        yield b"]"
    elif isinstance(value, list | np.ndarray) and len(value) > _PIECE_ITEMS:
        for start in range(0, len(value), _PIECE_ITEMS):
            yield b"," if start else b"["
            yield to_json(value[start : start + _PIECE_ITEMS])[1:-1]
        yield b"]"
    else:
        yield to_json(value)


def query_count(call: Call, name: str, default: int, most: int) -> int:
    """Return the whole number in the query parameter `name`, or `default` if the parameter is missing.

    Raises InvalidRequestError unless it is from 0 to `most`.
    """
    text = call.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= most):
        raise InvalidRequestError(name, text, f"a whole number from 0 to {most}")
    return int(text)


def query_page(call: Call, items: Mapping[str, T], default: int, most: int) -> tuple[list[T], bool]:
    """Return the page of `items` that the query's `order`, `after` and `limit` select, and whether more come after it.

    `items` are by id, the oldest first. Without `limit` the page has `default` items. Raises InvalidRequestError.
    """
    order, after = query_word(call, "order", ("asc", "desc"), "desc"), call.query.get("after")
    if after is not None and after not in items:
        raise InvalidRequestError("after", after, "the id of an item in this list")
    ids = list(items)[:: 1 if order == "asc" else -1]
    start = 0 if after is None else ids.index(after) + 1
    limit = query_count(call, "limit", default, most)
    return [items[each] for each in ids[start : start + limit]], start + limit < len(ids)


def query_word(call: Call, name: str, words: Sequence[T], default: T) -> T:
    """Return the query parameter `name`, one of some `words`, or `default` if the parameter is missing.

    Raises InvalidRequestError.
    """
    given = call.query.get(name)
    if given is None:
        return default
    for word in words:
        if word == given:
            return word
    allowed = list(map(str, words))
    raise InvalidRequestError(name, given, " or ".join(allowed) if len(words) == 2 else f"one of {', '.join(allowed)}")


def query_seconds(call: Call, name: str, default: float, least: float, most: float) -> float:
    """Return the number of seconds in the query parameter `name`, or `default` if the parameter is missing.

    Raises InvalidRequestError unless it is from `least` to `most`.
    """
    text = call.query.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= most:
        raise InvalidRequestError(name, text, f"a number of seconds from {least:g} to {most:g}")
    return seconds
