"""What web pages may call this server (CORS)."""

from __future__ import annotations

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Max-Age": "86400",
}


@web.middleware
async def preflight_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer CORS preflight requests: any page may call this server."""
    if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in request.headers:
        return await handler(request)
    wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "*")
    return web.Response(status=204, headers={**_PREFLIGHT_HEADERS, "Access-Control-Allow-Headers": wanted})


async def allow_every_origin(_request: web.Request, response: web.StreamResponse) -> None:
    """Set the header that lets any web page read the answer, also of a stream."""
    response.headers["Access-Control-Allow-Origin"] = "*"
