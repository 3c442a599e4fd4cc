"""What stands behind the question mark of a path."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.errors import InvalidRequestError


def query_count(request: web.Request, name: str, default: int, most: int) -> int:
    """Return the whole number `name` of the query. Raises InvalidRequestError for what is none up to `most`."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= most):
        raise InvalidRequestError(name, text, f"a whole number from 0 to {most}")
    return int(text)
