"""What stands behind the question mark of a path."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aiohttp import web
from pydantic_core import to_json

from rnn_engine.errors import InvalidRequestError
from server.schemas.responses.items import KeptItem


def query_count(request: web.Request, name: str, default: int, most: int) -> int:
    """Return the whole number `name` of the query. Raises InvalidRequestError for what is none up to `most`."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= most):
        raise InvalidRequestError(name, text, f"a whole number from 0 to {most}")
    return int(text)


def query_seconds(request: web.Request, name: str, default: float, least: float, most: float) -> float:
    """Return the number of seconds `name` of the query. Raises InvalidRequestError for what is none in the bounds."""
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


_MOST_ITEMS = 100  # of a page

PAGE_QUERY = {
    "limit": f"How many items, 20 unless told, at most {_MOST_ITEMS}.",
    "order": "`desc`, which is the default, tells the last item first; `asc` the first.",
    "after": "The id of an item: those after it.",
}
"""What `item_page` reads."""


def item_page(request: web.Request, items: Sequence[KeptItem]) -> bytes:
    """Return the part of `items` that the query asks for, as JSON. Raises InvalidRequestError."""
    ordered = items if request.query.get("order", "desc") == "asc" else items[::-1]
    ids = [item.id for item in ordered]
    after = request.query.get("after")
    if after is not None and after not in ids:
        raise InvalidRequestError("after", after, "the id of an item that is there")
    start = 0 if after is None else ids.index(after) + 1
    limit = query_count(request, "limit", 20, _MOST_ITEMS)
    return item_list(ordered[start : start + limit], has_more=start + limit < len(ordered))


def item_list(items: Sequence[KeptItem], *, has_more: bool = False) -> bytes:
    """Return items as a list of OpenAI's, as JSON."""
    ends = {"first_id": items[0].id if items else None, "last_id": items[-1].id if items else None}
    data = b",".join(item.json for item in items)
    return b'{"object":"list","data":[' + data + b"]," + to_json({**ends, "has_more": has_more})[1:]
