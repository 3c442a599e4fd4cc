"""The time limit of a request, and the bound on a client's parallel requests."""

from __future__ import annotations

import asyncio
import time

import pytest

from rnn_engine_server.core.settings import Limits, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve, Through, error_of
from tests.support.raw_server import raw_server

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 50), (2.5, 2.5), (50, 50)])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": ["a", "b"]}), ("/v1/chat/completions", CHAT)]
)
async def test_a_generation_has_a_deadline(
    serve: Serve, path: str, body: dict[str, object], timeout: float | None, seconds: float
) -> None:
    engine = FakeEngine()
    client = await serve(engine, ServerSettings(limits=Limits(max_request_seconds=50)))
    before = time.monotonic()
    assert (await client.post(path, json={**body, "timeout": timeout})).status == 200
    after = time.monotonic()
    for request in engine.requests:
        assert request.deadline is not None
        assert before + seconds <= request.deadline <= after + seconds


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (0, "timeout: 0 is not allowed; expected more than 0"),
        (51, "timeout: 51.0 is not allowed; expected at most 50 seconds (max_request_seconds)"),
        ("5", "timeout: '5' is not allowed; expected a number"),
    ],
)
async def test_a_timeout_that_is_not_allowed(serve: Serve, timeout: object, message: str) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_request_seconds=50)))
    response = await client.post("/v1/chat/completions", json={**CHAT, "timeout": timeout})
    assert message in (await error_of(response, 400))["message"]


async def test_what_does_not_end_by_itself_is_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine_server.core.performing._SPARE_SECONDS", 0.05)
    settings = ServerSettings(limits=Limits(max_request_seconds=0))
    client = await serve(FakeEngine(hold=0), settings)
    error = await error_of(await client.post("/v1/choices", json={"choices": ["a"]}), 504)
    assert (error["code"], error["message"]) == ("timeout", "the request took longer than 0 s")


async def test_a_stream_that_does_not_end_by_itself_is_cut(through: Through, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine_server.core.performing._SPARE_SECONDS", 0.5)  # in which it begins
    settings = ServerSettings(limits=Limits(max_request_seconds=0))
    engine = FakeEngine(hold=2)
    async with raw_server(await through(engine), settings=settings) as server:
        client = await server.connect()
        client.ask("/v1/completions", {"prompt": "a", "stream": True})
        answer = await client.ended()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"[DONE]" not in answer
        assert b"HTTP/1.1" not in answer[10:]
        assert engine.active == 0


async def test_one_client_has_no_more_requests_running_than_it_may(serve: Serve) -> None:
    engine = FakeEngine(hold=1)
    client = await serve(engine, ServerSettings(limits=Limits(max_client_requests=2)))
    running = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(2)]
    while engine.active < 2:
        await asyncio.sleep(0)
    response = await client.post("/v1/chat/completions", json=CHAT)
    error = await error_of(response, 429)
    assert error["message"] == "127.0.0.1 has 2 requests running, the most for one client"
    assert response.headers["Retry-After"] == "1"
    assert (await client.get("/health")).status == 200
    engine.release.set()
    assert [answer.status for answer in await asyncio.gather(*running)] == [200, 200]
    assert (await client.post("/v1/chat/completions", json=CHAT)).status == 200
