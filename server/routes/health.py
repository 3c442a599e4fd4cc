"""Health of the server: whether it takes requests, and how busy it is."""

from __future__ import annotations

from typing import Literal

from aiohttp import web

from server.http.bodies import json_response
from server.http.context import ENGINE, LIFECYCLE
from server.http.routing import Route
from server.schemas.models import Health


async def health(request: web.Request) -> web.Response:
    engine, lifecycle = request.app[ENGINE], request.app[LIFECYCLE]
    stats = engine.stats()
    cache = engine.cache_stats()
    status: Literal["ok", "closing", "failed"] = "failed" if stats.failed else "closing" if lifecycle.closing else "ok"
    body: Health = {
        "status": status,
        "model": engine.info.model,
        "requests": lifecycle.active,
        "active": stats.active,
        "queued": stats.queued,
        "cache_look_ups": 0 if cache is None else cache.look_ups,
        "cache_hits": 0 if cache is None else cache.hits,
    }
    return json_response(body, status=200 if status == "ok" else 503)


ROUTES = (Route("GET", "/health", health, "Whether the server takes requests.", Health, always=True),)
