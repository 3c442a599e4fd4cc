"""Health of the server: whether it takes requests, and if not, why; and how busy it is."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.health import Health as EngineHealth
from server.http.bodies import json_response
from server.http.context import ENGINE, LIFECYCLE
from server.http.errors import retry_headers
from server.http.routing import Route
from server.schemas.models import Health, Readiness


async def health(request: web.Request) -> web.Response:
    engine, lifecycle = request.app[ENGINE], request.app[LIFECYCLE]
    found = _find_health(request.app)
    stats = engine.stats()
    cache = engine.cache_stats()
    body: Health = {
        "status": found.status,
        "model": engine.info.model,
        "requests": lifecycle.active,
        "active": stats.active,
        "queued": stats.queued,
        "cache_look_ups": 0 if cache is None else cache.look_ups,
        "cache_hits": 0 if cache is None else cache.hits,
    }
    return json_response(body, status=200 if found.status == "ok" else 503)


async def ready(request: web.Request) -> web.Response:
    found = _find_health(request.app)
    return _answer(found, healthy=found.status == "ok")


async def live(request: web.Request) -> web.Response:
    found = _find_health(request.app)
    return _answer(found, healthy=found.status not in ("failed", "stalled"))


def _find_health(app: web.Application) -> EngineHealth:
    found = app[ENGINE].health()
    if app[LIFECYCLE].closing and found.status != "failed":
        return EngineHealth("closing", "the server is stopping and takes no new requests")
    return found


def _answer(found: EngineHealth, *, healthy: bool) -> web.Response:
    body: Readiness = {"status": found.status, "reason": found.reason, "seconds": round(found.seconds, 1)}
    if healthy:
        return json_response(body)
    return json_response(body, status=503, headers=retry_headers(found.retry_after))


ROUTES = (
    Route(
        "GET",
        "/health",
        health,
        "Whether the server takes requests, and how busy it is.",
        Health,
        always=True,
        also=("/v1/health",),
    ),
    Route(
        "GET",
        "/health/ready",
        ready,
        "Whether requests may be sent here; else 503 and why.",
        Readiness,
        always=True,
    ),
    Route(
        "GET",
        "/health/live",
        live,
        "503 where only a restart helps: the engine has failed, or its device does not answer any more.",
        Readiness,
        always=True,
    ),
)
