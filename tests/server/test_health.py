"""The server's health while the engine is well, while it is not, and while the server stops."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine.telemetry import Health
from rnn_engine_server.apis.openai.models import HealthBody, Readiness
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.routing import LIFECYCLE
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve, check_shape, error_of

PATHS = ("/health", "/health/ready", "/health/live")
BROKEN = Health("recovering", "the device failed and is being opened again", seconds=1.26, retry_after=4.2)


async def test_a_server_that_is_well(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for path in PATHS:
        response = await client.get(path)
        body = await response.json()
        assert (response.status, body["status"]) == (200, "ok")
        check_shape(HealthBody if path == "/health" else Readiness, body)


@pytest.mark.parametrize(
    ("status", "is_live"), [("checking", True), ("recovering", True), ("stalled", False), ("failed", False)]
)
async def test_an_engine_that_does_not_serve(serve: Serve, status: str, is_live: bool) -> None:
    engine = FakeEngine(condition=Health(status, "a reason"))  # type: ignore[arg-type]
    client = await serve(engine)
    answers = [await client.get(path) for path in PATHS]
    assert [answer.status for answer in answers] == [503, 503, 200 if is_live else 503]
    assert [(await answer.json())["status"] for answer in answers] == [status] * 3


async def test_a_server_that_is_not_ready_says_why_and_when_to_ask_again(serve: Serve) -> None:
    response = await (await serve(FakeEngine(condition=BROKEN))).get("/health/ready")
    assert await response.json() == {"status": "recovering", "reason": BROKEN.reason, "seconds": 1.3}
    assert (response.headers["Retry-After"], response.headers["Retry-After-Ms"]) == ("5", "4200")


async def test_a_server_that_stops_is_live_but_not_ready(serve: Serve) -> None:
    engine = FakeEngine(hold=1)
    client = await serve(engine)
    running = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
    await engine.held.wait()
    stopping = asyncio.create_task(client.app[LIFECYCLE].drain(5))
    await asyncio.sleep(0)
    assert [(await client.get(path)).status for path in PATHS] == [503, 503, 200]
    assert (await (await client.get("/health/ready")).json())["status"] == "closing"
    engine.release.set()
    await asyncio.gather(running, stopping)


async def test_health_needs_no_key(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings((ApiKey.of("secret"),))))
    assert [(await client.get(path)).status for path in PATHS] == [200, 200, 200]
    assert [(await client.head(path)).status for path in PATHS] == [200, 200, 200]


async def test_requests_are_refused_while_the_device_is_away(serve: Serve) -> None:
    client = await serve(FakeEngine(condition=BROKEN))
    response = await client.post("/v1/completions", json={"prompt": "a"})
    error = await error_of(response, 503)
    assert (error["code"], error["message"]) == ("unavailable", BROKEN.reason)
    assert response.headers["Retry-After"] == "5"
