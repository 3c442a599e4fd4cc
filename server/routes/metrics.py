"""The metrics of the server."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from server.http.context import METRICS
from server.http.routing import Route

_STARTED = "Process-Start-Time-Unix"  # a header of llama-server's


async def metrics(request: web.Request) -> web.Response:
    found = request.app[METRICS]
    headers = {hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4, _STARTED: str(found.started)}
    return web.Response(body=await asyncio.to_thread(found.render), headers=headers)


ROUTES = (
    Route(
        "GET",
        "/metrics",
        metrics,
        "Counts, times and sizes for Prometheus: [metrics.md](metrics.md).",
        None,
        content_type="text/plain",
        routine=True,
        uses_model=False,
    ),
)
