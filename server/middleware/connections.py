"""Tell a connection that a request of it begins."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from server.connections.connection import Connection


@web.middleware
async def connections_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the connection watch how quickly the body comes. Only telemetry stands before it."""
    if isinstance(request.protocol, Connection):  # the tests' server has connections of aiohttp's own
        request.protocol.begin(request)
    return await handler(request)
