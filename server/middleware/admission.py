"""Check the API key of a request and count it while it runs."""

from __future__ import annotations

import hmac

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from server.http.context import LIFECYCLE, SETTINGS
from server.http.routing import Route


def admission_middleware(routes: tuple[Route, ...]) -> Middleware:
    """Return middleware that checks the API key and counts the request, except on routes that always answer."""
    always = {path for route in routes if route.always for path in route.paths}

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in always:
            return await handler(request)
        _check_api_key(request, request.app[SETTINGS].api_key)
        with request.app[LIFECYCLE].request():
            return await handler(request)

    return admit


def _check_api_key(request: web.Request, api_key: str | None) -> None:
    if api_key is None:
        return
    given = request.headers.get(hdrs.AUTHORIZATION, "")
    if not hmac.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {api_key}".encode()):
        raise web.HTTPUnauthorized(
            text="the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
        )
