"""Whose things a request may see, and which part of a list it asks for."""

from __future__ import annotations

from typing import Final

from rnn_engine.errors import ForbiddenError
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_count, query_word
from rnn_engine_server.core.call import Call
from rnn_engine_server.store.owners import Cursor

ALL_OWNERS: Final = "*"
OWNER_QUERY: Final = {
    "owner": f"For the scope `admin` alone: the name of the API key whose things are returned, or `{ALL_OWNERS}` for "
    "those of all keys, also of removed ones."
}
"""What `listed_owner` reads."""


def owner_of(call: Call) -> str | None:
    """Return the name of the owner whose things a request may see and change; None = all, for an operator."""
    principal = call.principal
    return None if principal.scope is Scope.ADMIN else principal.name


def listed_owner(call: Call) -> str | None:
    """Return the name of the owner whose things a list must have; None = all. Raises ForbiddenError."""
    principal, asked = call.principal, call.query.get("owner")
    if asked is None or asked == principal.name:
        return principal.name
    if principal.scope is not Scope.ADMIN:
        raise ForbiddenError(f"owner: {asked[:80]!r} is another API key, and this one has no scope 'admin'")
    return None if asked == ALL_OWNERS else asked


def query_cursor(call: Call, default: int, most: int) -> Cursor:
    """Return the part of a list that the query's `order`, `after` and `limit` select. Raises InvalidRequestError."""
    order = query_word(call, "order", ("asc", "desc"), "desc")
    limit = query_count(call, "limit", default, most)
    return Cursor(limit, call.query.get("after"), ascending=order == "asc")
