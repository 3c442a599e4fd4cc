"""Health of the server: whether it takes requests, and if not, why; and how busy it is."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.health import Health as EngineHealth
from server.formatting.engine_status import readiness
from server.http.bodies import json_response
from server.http.context import LIFECYCLE, MODELS
from server.http.errors import retry_headers
from server.http.routing import Route
from server.schemas.models import Health, Readiness


async def health(request: web.Request) -> web.Response:
    models, lifecycle = request.app[MODELS], request.app[LIFECYCLE]
    found = _find_health(request)
    engines = [model.open_engine for model in models if model.open_engine is not None]
    stats = [engine.stats() for engine in engines]
    caches = [cache for engine in engines if (cache := engine.cache_stats()) is not None]
    body: Health = {
        "status": found.status,
        "model": models.default.name,
        "models": {model.name: model.status for model in models},
        "requests": lifecycle.active,
        "active": sum(each.active for each in stats),
        "queued": sum(each.queued for each in stats),
        "cache_look_ups": sum(cache.look_ups for cache in caches),
        "cache_hits": sum(cache.hits for cache in caches),
    }
    return json_response(body, status=200 if found.status == "ok" else 503)


async def ready(request: web.Request) -> web.Response:
    found = _find_health(request)
    return _answer(found, healthy=found.status == "ok")


async def live(request: web.Request) -> web.Response:
    found = _find_health(request)
    return _answer(found, healthy=found.status not in ("failed", "stalled"))


def _find_health(request: web.Request) -> EngineHealth:
    """Return the health of the model in the query, or else of all."""
    name, models = request.query.get("model"), request.app[MODELS]
    found = models.health() if name is None else models.find(name).health
    if request.app[LIFECYCLE].closing and found.status != "failed":
        return EngineHealth("closing", "the server is stopping and takes no new requests")
    return found


def _answer(found: EngineHealth, *, healthy: bool) -> web.Response:
    body = readiness(found)
    if healthy:
        return json_response(body)
    return json_response(body, status=503, headers=retry_headers(found.retry_after))


_QUERY = {"model": "The model that is asked about; without it, all."}

ROUTES = (
    Route(
        "GET",
        "/health",
        health,
        "Whether the server takes requests, and how busy it is.",
        Health,
        also_answers={503: Health},
        always=True,
        also=("/v1/health",),
    ),
    Route(
        "GET",
        "/health/ready",
        ready,
        "Whether requests may be sent here; else 503 and why.",
        Readiness,
        also_answers={503: Readiness},
        always=True,
        query=_QUERY,
    ),
    Route(
        "GET",
        "/health/live",
        live,
        "503 where only a restart helps: the engine has failed, or its device does not answer any more.",
        Readiness,
        also_answers={503: Readiness},
        always=True,
        query=_QUERY,
    ),
)
