"""An engine behind the server of this project, on a port of this machine."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from rnn_engine.interface import EngineLike
from server.core.app import ServerSettings, make_app


@asynccontextmanager
async def served(engine: EngineLike, clients: int, port: int = 0) -> AsyncIterator[int]:
    """Serve an engine to `clients` clients at a time. Yields the port; 0 takes a free one.

    The engine is closed with the server.
    """
    runner = web.AppRunner(make_app(engine, ServerSettings(port=0)), access_log=None, handler_cancellation=True)
    await runner.setup()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the clients break off in the middle
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=2 * clients)
        await site.start()
        bound: int = runner.addresses[0][1]
        yield bound
    finally:
        await runner.cleanup()
