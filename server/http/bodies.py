"""Read the JSON bodies of requests into their schemas, and write those of answers."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from typing import TypeVar

from aiohttp import hdrs, web

from server.http.context import SETTINGS
from server.schemas.base import RequestBody

Body = TypeVar("Body", bound=RequestBody)


async def read_body(request: web.Request, kind: type[Body]) -> Body:
    """Return the body as an object. Raises InvalidRequestError, or an aiohttp exception if it can't be read."""
    try:
        data = await request.read()
    except web.RequestPayloadError as error:
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
        message = f"the body can't be read; expected one with the Content-Encoding that it claims: {encoding}"
        # Where the next request begins is unknown.
        raise web.HTTPBadRequest(text=message, headers={hdrs.CONNECTION: "close"}) from error
    return kind.parse(data, request.app[SETTINGS].limits)


def to_json(body: Mapping[str, object]) -> str:
    """Return `body` as compact JSON. Raises ValueError for numbers that JSON does not have: NaN and infinities."""
    return dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_response(
    body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an answer that holds `body` as JSON."""
    return web.json_response(body, status=status, headers=headers, dumps=to_json)
