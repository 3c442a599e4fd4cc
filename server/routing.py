"""A route as data: what the application serves, and what docs/http-api.md is made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

_API_PREFIX = "/v1/"
_API_ALIASES = ("/api/oai/", "/api/oai/v1/")


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. The schemas are for the reader; `response` and `chunk` are TypedDicts."""

    method: str
    path: str
    handler: Handler
    summary: str
    response: type[object]
    request: type[BaseModel] | None = None
    chunk: type[object] | None = None  # what one event of a stream holds
    always: bool = False  # answers without an API key and while the server stops

    @property
    def paths(self) -> tuple[str, ...]:
        """The path and, for a path under /v1/, the others under which it answers too."""
        if not self.path.startswith(_API_PREFIX):
            return (self.path,)
        return (self.path, *(alias + self.path.removeprefix(_API_PREFIX) for alias in _API_ALIASES))


def add_routes(app: web.Application, routes: Iterable[Route]) -> None:
    """Serve every route under all of its paths; what answers GET answers HEAD."""
    for route in routes:
        for path in route.paths:
            app.router.add_route(route.method, path, route.handler)
            if route.method == hdrs.METH_GET:
                app.router.add_route(hdrs.METH_HEAD, path, route.handler)
