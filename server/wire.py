"""Bodies as JSON text, always valid: a number that JSON does not have is an error here and not at the client."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps

from aiohttp import web


def to_json(body: Mapping[str, object]) -> str:
    return dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_response(body: Mapping[str, object], status: int = 200) -> web.Response:
    return web.json_response(body, status=status, dumps=to_json)
