"""How the engines stand: what runs in their slots, what they have counted, and the memory that they take."""

from __future__ import annotations

import time

from aiohttp import web
from prometheus_client import ProcessCollector

from server.formatting.engine_status import engine_status
from server.http.bodies import json_response
from server.http.context import BUDGET, CONNECTIONS, LIFECYCLE, METRICS, MODELS, SETTINGS, open_engines_of
from server.http.query import query_seconds
from server.http.repeating import send_repeatedly
from server.http.routing import EVENTS, Route
from server.models.served import ServedModel
from server.schemas.engine_status import LoadingStatus, ServerStatus

_SECONDS, _LEAST_SECONDS, _MOST_SECONDS = 1.0, 0.1, 60.0
_PROCESS = ProcessCollector(registry=None)


async def status(request: web.Request) -> web.Response:
    return json_response(await _status(request))


async def events(request: web.Request) -> web.StreamResponse:
    seconds = query_seconds(request, "interval", _SECONDS, _LEAST_SECONDS, _MOST_SECONDS)
    return await send_repeatedly(request, seconds, lambda: _status(request))


async def _status(request: web.Request) -> ServerStatus:
    app = request.app
    process = {sample.name: sample.value for metric in _PROCESS.collect() for sample in metric.samples}
    resident = process.get("process_resident_memory_bytes")
    return {
        "object": "engine.status",
        "time": time.time(),
        "started": app[METRICS].started,
        "requests": app[LIFECYCLE].active,
        "connections": app[CONNECTIONS].open,
        "body_bytes": app[BUDGET].held,
        "body_capacity": app[BUDGET].capacity,
        "cpu_seconds": process.get("process_cpu_seconds_total"),
        "resident_bytes": None if resident is None else int(resident),
        "default": app[MODELS].default.name,
        "model_folder": app[SETTINGS].model_folder is not None,
        "models": {model.name: model.status for model in app[MODELS]},
        "loading": {model.name: _progress(model) for model in app[MODELS] if model.status == "loading"},
        "engines": [engine_status(name, engine) for name, engine in open_engines_of(request).items()],
    }


def _progress(model: ServedModel) -> LoadingStatus | None:
    progress = model.progress
    return None if progress is None else {"what": progress.what, "done": progress.done, "total": progress.total}


_STATUS = "How the engines stand: slots and who holds them, counts, times, memory"

ROUTES = (
    Route("GET", "/v1/engine", status, f"{_STATUS}.", ServerStatus, routine=True, uses_model=False, ai00_paths=False),
    Route(
        "GET",
        "/v1/engine/events",
        events,
        f"{_STATUS}: as events, until the server stops or the time for a request is up.",
        ServerStatus,
        content_type=EVENTS,
        query={
            "interval": f"Seconds between two events: {_SECONDS:g} unless told, {_LEAST_SECONDS:g} to "
            f"{_MOST_SECONDS:g}."
        },
        routine=True,
        uses_model=False,
        ai00_paths=False,
    ),
)
