"""Refuse what comes from other machines, under other names and from other pages; answer CORS preflight requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from server.doors.addresses import is_local
from server.doors.hosts import AllowedHosts
from server.doors.origins import Origins
from server.http.routing import route_of
from server.settings import ServerSettings

_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # answers hold texts
}
_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Private-Network": "true",
    "Access-Control-Max-Age": "86400",
}


def origins_middleware(settings: ServerSettings) -> Middleware:
    """Return middleware that admits who may come in; whoever else gets 403. The API key is checked later."""
    doors, keyless = settings.doors, not settings.doors.keys
    only_local = keyless and not doors.open
    hosts = AllowedHosts((settings.host, *doors.allowed_hosts)) if keyless or doors.allowed_hosts else None
    origins = Origins(doors.cors_origins)

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if only_local and not is_local(request.get_extra_info("peername")):
            raise web.HTTPForbidden(text="without an API key this server answers its own machine only")
        host = request.headers.get(hdrs.HOST)
        if hosts is not None and host is not None and host not in hosts:
            raise web.HTTPForbidden(
                text=f"host: {host[:80]!r} is no name of this server; its operator may add it with --allowed-host"
            )
        route = route_of(request)
        if not origins.admits(
            request.method,
            request.headers,
            is_page=route is not None and route.is_page,
            changes_by_get=route is not None and route.changes_by_get,
        ):
            raise web.HTTPForbidden(text=_refusal(request))
        if request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
            wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "*")
            return web.Response(headers={**_PREFLIGHT_HEADERS, "Access-Control-Allow-Headers": wanted})
        return await handler(request)

    return admit


def _refusal(request: web.Request) -> str:
    """Return why a request of a web page is refused."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None:
        return f"a page of {origin[:80]!r} may not call this server; its operator may add it with --cors-origin"
    return (
        f"{request.method} {request.path[:80]} comes from a page of another site, or from a browser that does not say "
        "from which page; links on other sites open this server's pages alone"
    )


def header_setter(settings: ServerSettings) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return what adds to every answer, also to a stream, the headers that tell browsers what they may do with it."""
    origins = Origins(settings.doors.cors_origins)

    async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
        for name, value in (*_SECURITY_HEADERS.items(), *origins.headers(request.headers.get(hdrs.ORIGIN)).items()):
            response.headers.setdefault(name, value)

    return set_headers
