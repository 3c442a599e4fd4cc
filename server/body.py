"""Reads a request's body into its schema."""

from __future__ import annotations

from typing import TypeVar

from aiohttp import web

from rnn_engine.errors import InvalidRequestError
from server.schemas.base import RequestBody

Body = TypeVar("Body", bound=RequestBody)


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """The body as an object. Raises InvalidRequestError, or aiohttp's exception where it is too large."""
    try:
        data = await request.read()
    except web.RequestPayloadError as error:
        encoding = request.headers.get("Content-Encoding", "")
        raise InvalidRequestError("Content-Encoding", encoding, "the encoding that the body has") from error
    return kind.parse(data)
