"""Answer every exception as an error object, in the shape of the route's API."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from server.http.errors import Failure, describe, describe_http, openai_error
from server.http.routing import route_of


@web.middleware
async def errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every exception as an error object."""
    try:
        return await handler(request)
    except ConnectionError:
        raise  # the client has left, so there is nobody to answer
    except web.HTTPException as error:
        return _answer(request, describe_http(error, _explain(request, error)))
    except Exception as error:
        return _answer(request, describe(error))


def _answer(request: web.Request, failure: Failure) -> web.Response:
    route = route_of(request)
    return failure.response(openai_error if route is None else route.error_form)


def _explain(request: web.Request, error: web.HTTPException) -> str:
    match error:
        case web.HTTPNotFound():
            return f"there is no {request.method} {request.path}"
        case web.HTTPMethodNotAllowed():
            return f"{request.path} takes {', '.join(sorted(error.allowed_methods))}, not {request.method}"
    return error.text or error.reason
