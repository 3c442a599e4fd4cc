"""Find out whose API key a request has, and count the request while it runs."""

from __future__ import annotations

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from server.doors.keys import KeyRing
from server.doors.scopes import ANYONE, Principal
from server.http.context import LIFECYCLE, PRINCIPAL
from server.http.routing import route_of
from server.settings import ServerSettings

_API_KEY = "X-Api-Key"
_ADMIN_TOKEN, _ADMIN_PATHS = "admin_token", ("/admin/", "/api/admin/")


def admission_middleware(settings: ServerSettings) -> Middleware:
    """Return middleware that checks the API key and its scope and counts the request.

    Routes that always answer need no key and are not counted.
    """
    ring = KeyRing(settings.doors.keys) if settings.doors.keys else None

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = route_of(request)
        if route is not None and route.always:
            return await handler(request)
        principal = request[PRINCIPAL] = ANYONE if ring is None else _principal(request, ring)
        if route is not None and not principal.scope.includes(route.scope):
            raise web.HTTPForbidden(
                text=f"the API key {principal.name!r} has the scope {principal.scope.value!r}; "
                f"{request.method} {request.path} needs {route.scope.value!r}"
            )
        with request.app[LIFECYCLE].request():
            return await handler(request)

    return admit


def _principal(request: web.Request, ring: KeyRing) -> Principal:
    key = _sent_key(request)
    principal = None if key is None else ring.find(key)
    if principal is None:
        raise web.HTTPUnauthorized(
            text="the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
        )
    return principal


def _sent_key(request: web.Request) -> str | None:
    """Return the key in the headers of a request, as OpenAI's clients send it or as Anthropic's do; or ai00's admins'
    in the query."""
    scheme, _, key = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    in_query = request.query.get(_ADMIN_TOKEN) if request.path.startswith(_ADMIN_PATHS) else None
    return request.headers.get(_API_KEY, in_query)
