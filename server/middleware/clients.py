"""Bound how many requests of one client run at a time."""

from __future__ import annotations

from collections import Counter

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from rnn_engine.errors import OverloadedError
from server.http.context import PRINCIPAL, client_of

_RETRY_SECONDS = 1.0


def clients_middleware(most: int) -> Middleware:
    """Return middleware that lets at most `most` requests of a client run; comes after the check of the API key.

    A client is an API key, or without keys an address. Those that come through a Unix socket are not bounded.
    """
    running: Counter[str] = Counter()

    @web.middleware
    async def bound(request: web.Request, handler: Handler) -> web.StreamResponse:
        if PRINCIPAL not in request or not (client := client_of(request).name):
            return await handler(request)
        if running[client] >= most:
            who = f"the API key {client!r}" if request[PRINCIPAL].name else client
            raise OverloadedError(f"{who} has {most} requests running, the most for one client", _RETRY_SECONDS)
        running[client] += 1
        try:
            return await handler(request)
        finally:
            running[client] -= 1
            if running[client] == 0:
                del running[client]

    return bound
