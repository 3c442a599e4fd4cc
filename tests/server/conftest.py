"""A server over the fake engine, and one over the demo model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pytest_aiohttp.plugin import AiohttpClient

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from server.app import make_app
from server.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Client, Serve


@pytest.fixture
def serve(aiohttp_client: AiohttpClient) -> Serve:
    """Start a server over an engine and give a client of it."""

    async def start(engine: FakeEngine, settings: ServerSettings | None = None) -> Client:
        return await aiohttp_client(make_app(engine, settings or ServerSettings()))

    return start


@pytest.fixture
async def demo() -> AsyncIterator[Client]:
    engine = await Engine.load(model_path(), device="cpu", num_slots=4)
    async with TestClient(TestServer(make_app(engine, ServerSettings()))) as client:
        yield client
