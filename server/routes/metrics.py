"""The metrics of the server."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from server.http.context import METRICS
from server.http.routing import Route


async def metrics(request: web.Request) -> web.Response:
    body = await asyncio.to_thread(request.app[METRICS].render)
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})


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
