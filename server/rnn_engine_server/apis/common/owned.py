"""Whose things a request may see, which part of a list it asks for, and the answers with lists and deletions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Literal, Protocol, TypeVar

from typing_extensions import TypedDict

from rnn_engine.errors import ForbiddenError
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_count, query_word
from rnn_engine_server.core.call import Call
from rnn_engine_server.store.owners import Cursor, Page

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


def cursor_query(what: str, default: int, most: int) -> dict[str, str]:
    """Return the parameters of the query that `query_cursor` reads for a list of `what`."""
    return {
        "limit": f"How many {what} to return: {default} by default, at most {most}.",
        "order": "`desc` (the default) returns the newest first, `asc` the oldest.",
        "after": "The id of one: return only those after it.",
    }


def page_query(what: str, default: int, most: int) -> dict[str, str]:
    """Return the parameters of the query that `own_page` reads for a list of `what`."""
    return {**cursor_query(what, default, most), **OWNER_QUERY}


def query_cursor(call: Call, default: int, most: int) -> Cursor:
    """Return the part of a list that the query's `order`, `after` and `limit` select. Raises InvalidRequestError."""
    order = query_word(call, "order", ("asc", "desc"), "desc")
    limit = query_count(call, "limit", default, most)
    return Cursor(limit, call.query.get("after"), ascending=order == "asc")


# The course of requests for a page of a list, for one thing, and for its deletion.


T = TypeVar("T")


class ListOf(TypedDict, Generic[T]):
    """A list of things."""

    object: Literal["list"]
    data: list[T]


class PartOf(ListOf[T], Generic[T]):
    """A part of a list. If `has_more`, the last one's id is `after` for the next part."""

    has_more: bool


class PageEnds(TypedDict):
    """The ends of a page of a list, in OpenAI's form."""

    first_id: str | None
    last_id: str | None
    has_more: bool


class PageOf(PageEnds, ListOf[T], Generic[T]):
    """A page of a list. If `has_more`, `last_id` is `after` for the next page."""


class Deleted(TypedDict):
    """What was deleted: its id, and what kind of thing it was."""

    id: str
    object: str
    deleted: Literal[True]


class Identified(Protocol):
    """What a list has, under its id."""

    @property
    def id(self) -> str: ...


Found = TypeVar("Found", bound=Identified)


def page_ends(page: Sequence[Identified], *, has_more: bool) -> PageEnds:
    """Return the ids of the first and the last item of `page`, and whether more come after it."""
    return {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None, "has_more": has_more}


def page_of(found: Page[Found], show: Callable[[Found], T]) -> PageOf[T]:
    """Return a page of things, each as `show` describes it."""
    return {"object": "list", "data": list(map(show, found.items)), **page_ends(found.items, has_more=found.has_more)}


def part_of(found: Page[Found], show: Callable[[Found], T]) -> PartOf[T]:
    """Return a part of a list of things, each as `show` describes it."""
    return {"object": "list", "data": list(map(show, found.items)), "has_more": found.has_more}


async def own_page(
    call: Call,
    find: Callable[[str | None, Cursor], Awaitable[Page[Found]]],
    show: Callable[[Found], T],
    default: int,
    most: int,
) -> PageOf[T]:
    """Return the page of a list that the query selects: what `find` returns for its owner, as `show` describes it."""
    return page_of(await find(listed_owner(call), query_cursor(call, default, most)), show)


async def own(call: Call, find: Callable[[str | None, str], Awaitable[T]]) -> T:
    """Return what `find` returns for the owner and the id in a request's path."""
    return await find(owner_of(call), call.parameters["id"])


async def delete_own(call: Call, delete: Callable[[str | None, str], Awaitable[object]], kind: str) -> Deleted:
    """Delete the thing whose id the request's path has, and return the answer."""
    await own(call, delete)
    return deleted(call.parameters["id"], kind)


def deleted(thing_id: str, kind: str) -> Deleted:
    """Return the answer to a request that has deleted a thing."""
    return {"id": thing_id, "object": kind, "deleted": True}
