"""Choose the model of each request, and keep it loaded until the request has ended."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from server.http.context import MODEL_USE, MODELS
from server.http.routing import AI00_PREFIX, route_of
from server.models.registry import ModelUse
from server.settings import ServerSettings


def models_middleware(settings: ServerSettings) -> Middleware:
    """Return middleware through which `engine_of` finds its model. The query chooses it where there is no body.

    ai00 has one model whatever a request names, so under its paths every name does.
    """

    @web.middleware
    async def choose(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = route_of(request)
        if route is None or route.always or not route.uses_model:
            return await handler(request)
        any_name = settings.any_model or request.path.startswith(AI00_PREFIX)
        wait_seconds = settings.limits.max_load_seconds
        with ModelUse(request.app[MODELS], wait_seconds=wait_seconds, any_name=any_name) as use:
            request[MODEL_USE] = use
            if route.request is None:
                await use.choose(request.query.get("model"))
            return await handler(request)

    return choose
