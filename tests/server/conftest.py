"""Servers over an engine or over a fleet, as `--over` says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from rnn_engine.cli.session import load_engine
from rnn_engine.fleet.replica import ReplicaEngine
from rnn_engine.interface import EngineLike
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tests.support.demo_server import demo_choice
from tests.support.fleet import local_fleet
from tests.support.http import Client, Load, Serve, Through, client_over


@pytest.fixture
def over(request: pytest.FixtureRequest) -> str:
    """Return what the server serves: an `engine`, or a `fleet`."""
    chosen: str = request.config.getoption("over")
    limit = request.node.get_closest_marker("over_one_engine")
    if chosen == "fleet" and limit is not None:
        pytest.skip(limit.args[0])
    return chosen


@pytest.fixture
def through(over: str) -> Through:
    """Return a function that returns an engine itself, or a fleet with it as its replica, as `over` says."""

    async def reached(engine: ReplicaEngine, max_queued: int = 64) -> EngineLike:
        if over == "engine":
            return engine
        fleet, _ = await local_fleet({"a": engine}, max_queued)
        return fleet

    return reached


@pytest.fixture
def load(over: str, request: pytest.FixtureRequest) -> Load:
    """Return a function that loads a model into an engine, or into two replicas on Ray Serve."""
    if over == "engine":
        return load_engine
    fleets: Load = request.getfixturevalue("ray_fleets")
    return fleets


@pytest.fixture
def serve(aiohttp_client: AiohttpClient, through: Through) -> Serve:
    """Return a function that starts a server over an engine, and returns a client of it."""

    async def start(engine: ReplicaEngine, settings: ServerSettings | None = None) -> Client:
        return await aiohttp_client(make_app(await through(engine), settings or ServerSettings()))

    return start


@pytest.fixture
async def demo(load: Load) -> AsyncIterator[Client]:
    """Yield a client of a server with the demo model."""
    async with client_over(await load(demo_choice())) as client:
        yield client
