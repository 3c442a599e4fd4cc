"""Send one request as bytes, and find the faults of the answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tools.fuzz.cases import Case
from tools.live_server.raw import connection

_SILENCE = 2.0  # seconds to wait for the answer to an incomplete request
_HANGING = 300.0  # seconds after which a server counts as hanging
NOT_IMPLEMENTED = 501
"""The status of routes that only explain why this server lacks a feature."""

_TEXT_ERRORS = ({"error", "error_type"}, {"error"})  # of text-generation-inference and of Ollama
_STATUS = re.compile(rb"(?:HTTP/1\.1 100 [^\r]*\r\n\r\n)?HTTP/1\.[01] ([0-9]{3})")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. The status is None if no HTTP answer came."""

    status: int | None
    body: bytes
    hung: bool = False


async def send(url: str, case: Case) -> Answer:
    """Send the request, and read until the server closes the connection.

    After a request that is not whole, stop when the server has sent nothing more for `_SILENCE` seconds.
    """
    received = bytearray()
    try:
        async with connection(url) as (reader, writer):
            writer.write(case.data)
            if await _read(reader, received, _HANGING if case.whole else _SILENCE):
                return _parse(received)
            if not received and not case.whole:
                writer.write_eof()
                if await _read(reader, received, _HANGING):
                    return _parse(received)
            return Answer(None, b"", hung=True) if case.whole or not received else _parse(received)
    except ConnectionError:
        return _parse(received)


async def _read(reader: asyncio.StreamReader, received: bytearray, seconds: float) -> bool:
    """Add the bytes that come to `received`. Return True if the server closed the connection within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while piece := await reader.read(2**16):
                received += piece
    except TimeoutError:
        return False
    return True


def _parse(received: bytearray) -> Answer:
    found = _STATUS.match(received)
    if found is None:
        return Answer(None, b"")
    return Answer(int(found[1]), bytes(received[found.end() :]).partition(b"\r\n\r\n")[2])


def faults(case: Case, answer: Answer) -> Iterator[str]:
    """Yield the faults of an answer."""
    if answer.hung:
        yield f"no answer within {_HANGING:g} s"
    elif answer.status is None and case.whole:
        yield "the connection was closed without an answer"
    elif answer.status is not None and answer.status >= 500 and answer.status != NOT_IMPLEMENTED:
        yield f"status {answer.status}: {answer.body[:300]!r}"
    elif answer.status is not None and answer.status >= 400 and not _is_error_body(answer.body):
        yield f"status {answer.status} with another body than an error's: {answer.body[:100]!r}"


def _is_error_body(body: bytes) -> bool:
    """Return True if the body of an error has the documented shape. An empty one, as after HEAD, has it, too."""
    try:
        if not body:
            return True
        told = json.loads(body)
        if isinstance(told["error"], str):
            return set(told) in _TEXT_ERRORS
        return set(told["error"]) == ({"message", "type"} if "type" in told else {"message", "type", "param", "code"})
    except (ValueError, KeyError, TypeError):
        return False
