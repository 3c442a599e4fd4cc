"""A server for clients of other libraries: its event loop runs on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from aiohttp.test_utils import TestServer

from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.demo import model_path
from rnn_engine.interface import EngineLike
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_states.cache.config import CacheConfig

_CACHE = CacheConfig()
_STATES = StateSettings()


def demo_choice(slots: int = 4, cache: CacheConfig | None = _CACHE, states: StateSettings = _STATES) -> EngineChoice:
    """Return the choice of the demo model on the CPU."""
    return EngineChoice(model_path(), LoadSettings("cpu"), slots, cache, states)


@contextmanager
def demo_server(settings: ServerSettings) -> Iterator[str]:
    """Serve the demo model while the block runs; yield the server's root URL."""
    with engine_server(lambda: load_engine(demo_choice()), settings) as url:
        yield url


@contextmanager
def engine_server(load: Callable[[], Awaitable[EngineLike]], settings: ServerSettings | None = None) -> Iterator[str]:
    """Serve an engine while the block runs; yield the server's root URL. `load` is called on the server's thread."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(load, settings or ServerSettings(), started)), name="server"
    )
    thread.start()
    url, loop, stop = started.result()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _serve(
    load: Callable[[], Awaitable[EngineLike]],
    settings: ServerSettings,
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]],
) -> None:
    try:
        engine = await load()
        async with TestServer(make_app(engine, settings)) as server:
            stop = asyncio.Event()
            started.set_result((str(server.make_url("")).rstrip("/"), asyncio.get_running_loop(), stop))
            await stop.wait()
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)
