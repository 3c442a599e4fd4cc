"""Routes as data, from which the application, docs/http-api.md and the OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import TypeAlias

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from server.doors.scopes import Scope
from server.http.errors import ErrorForm, openai_error

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html"

_OPENAI_PREFIX = "/v1/"
AI00_PREFIX = "/api/oai/"
_AI00_V1_PREFIX = "/api/oai/v1/"

OPEN_BODY_BYTES = 4096
"""The most bytes of a body that anyone may send without an API key."""

MODEL_QUERY = {"model": "The name of a model; the default one where it is absent."}
"""What may follow the question mark of every path whose handler takes an engine."""


Kind: TypeAlias = type[object] | UnionType
"""The type of an answer: a TypedDict, a list of something, or one of several such."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. The schemas serve the documentation."""

    method: str
    path: str
    handler: Handler
    summary: str
    response: Kind | None  # None = what is no JSON
    request: type[BaseModel] | None = None
    chunk: Kind | None = None  # what one event of a stream holds, where the request asks for one
    content_type: str = JSON  # of the answer; that of a stream, where the route answers with nothing else
    stream_type: str = EVENTS  # of the stream that a request asks for
    also_answers: Mapping[int, Kind] = field(default_factory=dict)  # by status: what is no error, and has another body
    query: Mapping[str, str] = field(default_factory=dict)  # what may follow the path's question mark, and its meaning
    scope: Scope = Scope.USE  # what an API key has to have
    routine: bool = False  # asked for again and again by those who watch the server
    always: bool = False  # answers without an API key and while the server stops
    is_page: bool = False  # links on other sites may open it
    changes_by_get: bool = False  # a GET that changes something, because other servers have it so
    max_body_bytes: int | None = None  # of a request; None = what the limits say, or OPEN_BODY_BYTES with `always`
    uses_model: bool = True  # the handler takes an engine; False = which models there are does not matter
    ai00_paths: bool = True  # a path under /v1/ answers under ai00's, too; False where that name means something else
    also: tuple[str, ...] = ()  # further paths under which it answers
    error_form: ErrorForm = openai_error  # how its errors are told

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths under which the route answers: a path under /v1/ also answers under both of ai00's prefixes."""
        return (*self._prefixed_paths, *self.also)

    def most_body_bytes(self, limit: int) -> int:
        """Return the most bytes that a body may have where the server's limit for its kind is `limit`."""
        most = OPEN_BODY_BYTES if self.always and self.max_body_bytes is None else self.max_body_bytes
        return limit if most is None else min(most, limit)

    @property
    def _prefixed_paths(self) -> tuple[str, ...]:
        if self.path.startswith(_OPENAI_PREFIX) and self.ai00_paths:
            name = self.path.removeprefix(_OPENAI_PREFIX)
            return (self.path, AI00_PREFIX + name, _AI00_V1_PREFIX + name)
        if self.path.startswith(AI00_PREFIX):
            return (self.path, _AI00_V1_PREFIX + self.path.removeprefix(AI00_PREFIX))
        return (self.path,)


ROUTES: web.AppKey[dict[web.AbstractRoute, Route]] = web.AppKey("routes", dict)


def add_routes(app: web.Application, routes: Iterable[Route]) -> None:
    """Add every route under all of its paths; those for GET also answer HEAD, unless they change something."""
    added = app[ROUTES] = {}
    for route in routes:
        for path in route.paths:
            added[app.router.add_route(route.method, path, route.handler)] = route
            if route.method == hdrs.METH_GET and not route.changes_by_get:
                added[app.router.add_route(hdrs.METH_HEAD, path, route.handler)] = route


def route_of(request: web.Request) -> Route | None:
    """Return the route that answers a request; None where no route does."""
    return request.app[ROUTES].get(request.match_info.route)
