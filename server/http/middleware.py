"""Middleware: errors in OpenAI's shape, CORS, the API key, and the count of running requests."""

from __future__ import annotations

import hmac

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from server.http.context import LIFECYCLE, SETTINGS
from server.http.errors import describe, describe_http
from server.http.routing import Route

_PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Max-Age": "86400",
}


@web.middleware
async def errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every exception as an error object."""
    try:
        return await handler(request)
    except ConnectionError:
        raise  # the client has left, so there is nobody to answer
    except web.HTTPException as error:
        return describe_http(error, _explain(request, error)).response()
    except Exception as error:
        return describe(error).response()


def _explain(request: web.Request, error: web.HTTPException) -> str:
    match error:
        case web.HTTPNotFound():
            return f"there is no {request.method} {request.path}"
        case web.HTTPMethodNotAllowed():
            return f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}"
        case web.HTTPRequestEntityTooLarge():
            return f"the body is larger than {request.app[SETTINGS].max_body_bytes} bytes"
    return error.text or error.reason


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
    if not hmac.compare_digest(given.encode(), f"Bearer {api_key}".encode()):
        raise web.HTTPUnauthorized(
            text="the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
        )
