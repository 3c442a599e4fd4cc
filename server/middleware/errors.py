"""Answer every exception as an error object in OpenAI's shape."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from server.http.errors import describe, describe_http


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
    return error.text or error.reason
