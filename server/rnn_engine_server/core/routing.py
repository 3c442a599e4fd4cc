"""Routes as data, and middleware that turns exceptions into error answers and ends requests that take too long."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from itertools import zip_longest
from types import UnionType
from typing import TypeAlias

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from rnn_engine.errors import EngineClosedError
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.errors import ErrorForm, Failure, describe, describe_http, openai_error
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.core.settings import ServerSettings

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html"
FORM = "multipart/form-data"

_OPENAI_PREFIX, _GROQ_PREFIX = "/v1/", "/openai"
AI00_PREFIX = "/api/oai/"
_AI00_V1_PREFIX = "/api/oai/v1/"

OPEN_BODY_BYTES = 4096
"""The most bytes of a body that anyone may send without an API key."""

MODEL_QUERY = {"model": "The name of a model; without it, the default model."}
"""The query parameters of every route whose handler takes an engine."""

App: TypeAlias = web.Application
"""Holds the parts of the server, each under its key."""

AppKey = web.AppKey
"""A key under which the application holds a part of the server."""

Kind: TypeAlias = type[object] | UnionType
"""The type of an answer: a TypedDict, a list of something, or one of several such."""


@dataclass(frozen=True, slots=True)
class Route:
    """An HTTP method on a path with its handler, its scope, and the schemas of its bodies for the documentation."""

    method: str
    path: str
    handler: Callable[..., Awaitable[object]]  # takes the `Call` and, if the route has one, the body
    summary: str
    response: Kind | None  # None = the answer is no JSON
    request: type[RequestBody] | None = None  # the body
    keeps_text: bool = False  # of the body, for the handler
    form: type[RequestBody] | None = None  # the fields of a body of the type multipart/form-data
    chunk: Kind | None = None  # what one event holds, if the request may ask for a stream
    content_type: str = JSON  # of the answer; of a stream, if the route always streams
    stream_type: str = EVENTS  # of the stream that a request asks for
    also_answers: Mapping[int, Kind] = field(default_factory=dict)  # by status: further answers that are no errors
    query: Mapping[str, str] = field(default_factory=dict)  # the parameters of the query, and their meanings
    scope: Scope = Scope.USE  # that an API key needs
    routine: bool = False  # requested again and again by programs that watch the server
    always: bool = False  # answers without an API key and while the server stops
    is_page: bool = False  # links on other sites may open it
    changes_by_get: bool = False  # a GET that changes something, as on other servers
    uses_model: bool = True  # the handler uses the engine of a model
    also: tuple[str, ...] = ()  # further paths under which it answers
    error_form: ErrorForm = openai_error  # makes the answers of its errors

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths under which the route answers. ai00's routes answer under both of its prefixes."""
        if self.path.startswith(AI00_PREFIX):
            return (self.path, _AI00_V1_PREFIX + self.path.removeprefix(AI00_PREFIX), *self.also)
        return (self.path, *self.also)


ROUTES: web.AppKey[dict[web.AbstractRoute, Route]] = web.AppKey("routes", dict)


Respond: TypeAlias = Callable[[Route, web.Request], Awaitable[web.StreamResponse]]


def make_router(routes: Iterable[Route], respond: Respond) -> tuple[web.UrlDispatcher, dict[web.AbstractRoute, Route]]:
    """Return routes, each under all of its paths, for any number of applications. `respond` answers a request for one.

    Routes for GET also answer HEAD, unless they change something. A path under /v1/ answers under /openai/v1/, too, as
    on Groq's servers.
    """
    router, added = web.UrlDispatcher(), dict[web.AbstractRoute, Route]()
    for route in routes:
        handler = partial(respond, route)
        for path in (
            *route.paths,
            *(f"{_GROQ_PREFIX}{path}" for path in route.paths if path.startswith(_OPENAI_PREFIX)),
        ):
            added[router.add_route(route.method, path, handler)] = route
            if route.method == hdrs.METH_GET and not route.changes_by_get:
                added[router.add_route(hdrs.METH_HEAD, path, handler)] = route
    return router, added


def add_routes(app: web.Application, router: web.UrlDispatcher, routes: dict[web.AbstractRoute, Route]) -> None:
    """Add routes to an application, which has them under `ROUTES`."""
    app[ROUTES] = routes
    for resource in (*router.resources(), _OtherSpellings(app.router, app[SETTINGS].root_path)):
        app.router.register_resource(resource)


_IS_PLAIN = web.RequestKey("is_plain", bool)
"""Present if no other spelling of a request's path has to be tried."""
REST = "[^/]+(?:/[^/]+)*"
"""The pattern of a path's parameter that may have several parts."""


class _OtherSpellings(web.PlainResource):
    """Finds the route of a path that has doubled slashes, one at its end or the root path, if nothing else matches."""

    def __init__(self, router: web.UrlDispatcher, root_path: str) -> None:
        super().__init__("/")  # so it is asked last
        self._router = router
        self._root_path = root_path

    async def resolve(self, request: web.Request) -> tuple[web.UrlMappingMatchInfo | None, set[str]]:
        path = _plain(request.rel_url.raw_path, self._root_path)
        if path == request.rel_url.raw_path or _IS_PLAIN in request:
            return None, set()
        found = await _resolve(self._router, request, path)
        if isinstance(found.http_exception, web.HTTPMethodNotAllowed):
            return None, found.http_exception.allowed_methods
        return found if found.http_exception is None else None, set()


async def _resolve(router: web.UrlDispatcher, request: web.Request, path: str) -> web.UrlMappingMatchInfo:
    """Return what would answer a request with the percent-encoded path `path`."""
    asked = request.clone(rel_url=request.rel_url.with_path(path, encoded=True))
    asked[_IS_PLAIN] = True
    return await router.resolve(asked)


def _plain(path: str, root_path: str) -> str:
    plain = _SLASHES.sub("/", path).removesuffix("/")
    return (plain.removeprefix(root_path) if f"{plain}/".startswith(f"{root_path}/") else plain) or "/"


def path_of(request: web.Request) -> str:
    """Return a request's path, decoded, and without what its route's path has not: further slashes, the root path."""
    return _plain(request.path, request.app[SETTINGS].root_path)


def route_of(request: web.Request) -> Route | None:
    """Return the route that answers a request, None if no route does."""
    return request.app[ROUTES].get(request.match_info.route)


# Which requests run, and whether the server is closing.


class Lifecycle:
    """Counts running requests; while the server closes, rejects new ones and waits until the last has ended."""

    def __init__(self) -> None:
        self.active = 0
        self._closing = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    async def wait_closing(self) -> None:
        """Wait until the server begins to close and rejects new requests."""
        await self._closing.wait()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as running during a `with` block. Raises EngineClosedError if the server is closing."""
        if self.closing:
            raise EngineClosedError("the server is stopping and takes no new requests")
        self.active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= 1
            if self.active == 0:
                self._idle.set()

    async def drain(self, seconds: float) -> bool:
        """Reject new requests and wait for the running ones. Return False if some still run after `seconds`."""
        self._closing.set()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


# The keys under which the application holds what all of its parts use.

SETTINGS = web.AppKey("settings", ServerSettings)

LIFECYCLE = web.AppKey("lifecycle", Lifecycle)


@web.middleware
async def errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert exceptions of a handler to error answers in the form of the route's API.

    ConnectionError is raised again, since the client has left.
    """
    try:
        return await handler(request)
    except ConnectionError:
        raise  # the client has left, so no answer can be sent
    except web.HTTPException as error:
        return _answer_failure(request, describe_http(error, await _explain(request, error)))
    except Exception as error:
        return _answer_failure(request, describe(error))


def _answer_failure(request: web.Request, failure: Failure) -> web.Response:
    route = route_of(request)
    return failure.response(openai_error if route is None else route.error_form)


async def _explain(request: web.Request, error: web.HTTPException) -> str:
    match error:
        case web.HTTPNotFound() if route_of(request) is None:
            return f"there is no route {request.method} {request.path}{await _advice(request)}"
        case web.HTTPMethodNotAllowed():
            return f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}"
    return error.text or error.reason


# What may have been meant by a path that no route has.

_SLASHES = re.compile("/{2,}")
_MOST_PATH, _MOST_PARTS = 200, 8  # characters and parts of a path that may be a mistake
_LIKE, _LIKE_PART = 0.85, 0.85  # the least likeness (`difflib`) of such a path to a route's, and of each of its parts
_PREFIXES = ("/v1", "", "/api")  # that a path may lack


async def _advice(request: web.Request) -> str:
    """Return the end of an error text: the path that was probably meant, and a base address that leads to it."""
    root_path = request.app[SETTINGS].root_path
    path = _plain(request.rel_url.raw_path, root_path)
    parts = path.split("/")[1:]
    if len(path) > _MOST_PATH or len(parts) > _MOST_PARTS:
        return ""
    known = {route.resource.canonical for route in request.app[ROUTES] if route.resource is not None}
    paths = [_filled(each, parts) for each in sorted(known) if not each.startswith(_GROQ_PREFIX)]
    likeness, nearest = max((_likeness(each, parts), each) for each in paths)
    if likeness >= _LIKE_PART:
        return f"; did you mean {nearest}?"
    for number in range(len(parts)):
        for prefix in _PREFIXES:
            meant = "/".join([prefix, *parts[number:]])
            found = await _resolve(request.app.router, request, meant)
            if not meant.startswith(_GROQ_PREFIX) and not isinstance(found.http_exception, web.HTTPNotFound):
                base = f"{request.scheme}://{request.host}{root_path}"
                if meant.startswith(_OPENAI_PREFIX):
                    base = f"{base}{_OPENAI_PREFIX.rstrip('/')}, or {base} if the client adds {_OPENAI_PREFIX} itself"
                return f"; did you mean {meant}? Then the base address is {base}"
    alike = get_close_matches(path, paths, n=1, cutoff=_LIKE)
    return f"; did you mean {alike[0]}?" if alike else ""


def _filled(known: str, parts: Sequence[str]) -> str:
    """Return a route's path with what was sent in place of its parameters."""
    pairs = zip_longest(known.split("/")[1:], parts[: known.count("/")], fillvalue="")
    return "".join(f"/{part if name.startswith('{') else name}" for name, part in pairs)


def _likeness(known: str, parts: Sequence[str]) -> float:
    """Return how like two paths are, from 0 to 1; 0 if one has more parts or a part of them is too different."""
    pairs = list(zip(known.split("/")[1:], parts, strict=False))
    if len(parts) != known.count("/"):
        return 0.0
    ratios = [1.0 if one == other else SequenceMatcher(None, one, other.lower()).ratio() for one, other in pairs]
    return sum(ratios) / len(ratios) if min(ratios) >= _LIKE_PART else 0.0
