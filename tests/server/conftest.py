"""A server over the fake engine, and helpers to read its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from server.app import make_app
from server.settings import ServerSettings
from tests.support.fake_engine import FakeEngine

Serve = Callable[..., Awaitable[TestClient[Any, Any]]]


@pytest.fixture
def serve(aiohttp_client: Any) -> Serve:
    """Start a server over an engine; keywords are the server's settings."""

    async def start(engine: FakeEngine, **settings: Any) -> TestClient[Any, Any]:
        return await aiohttp_client(make_app(engine, ServerSettings(**settings)))

    return start
