"""AstrAI's statistics. What else it has, others have too."""

from __future__ import annotations

from aiohttp import web

from server.formatting.astrai import describe_scheduler
from server.http.bodies import json_response
from server.http.context import PRINCIPAL, RECENT, engine_of
from server.http.routing import MODEL_QUERY, Route
from server.schemas.astrai import SchedulerStats


async def stats(request: web.Request) -> web.Response:
    recent = request.app[RECENT].seen_by(request[PRINCIPAL])
    return json_response(describe_scheduler(engine_of(request), recent))


ROUTES = (
    Route(
        "GET",
        "/stats",
        stats,
        "What the scheduler has done, as AstrAI tells it.",
        SchedulerStats,
        query=MODEL_QUERY,
        routine=True,
    ),
)
