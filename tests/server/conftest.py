"""A server over the fake engine."""

from __future__ import annotations

import pytest
from pytest_aiohttp.plugin import AiohttpClient

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
