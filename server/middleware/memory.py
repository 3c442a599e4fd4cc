"""Give back what a request holds of the server's memory when it has ended."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from server.http.context import BUDGET, LEASE


@web.middleware
async def memory_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the handler hold memory through `request[LEASE]`."""
    with request.app[BUDGET].lease() as lease:
        request[LEASE] = lease
        return await handler(request)
