"""What the tests of the server read from its answers."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import ClientResponse
from pydantic import TypeAdapter


def events(body: str) -> list[Any]:
    """The JSON events of a whole stream, which must be framed as the standard has it and end with [DONE]."""
    frames = body.split("\n\n")
    assert frames.pop() == "", "the last event lacks its blank line"
    assert frames.pop() == "data: [DONE]"
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def check_shape(kind: type[object], body: object) -> None:
    """Raise where `body` has a field more, a field less or one of another type than the TypedDict `kind`."""
    TypeAdapter(kind).validate_python(body, strict=True)


async def error_of(response: ClientResponse, status: int) -> dict[str, Any]:
    """The error object of an answer, whose shape and status are checked."""
    body = await response.json()
    assert response.status == status, body
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]
