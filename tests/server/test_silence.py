"""Streams are never silent for long: headers come soon, and then pings, on every route that streams. Nothing sleeps."""

from __future__ import annotations

import asyncio
import heapq
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import count
from types import SimpleNamespace

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from rnn_engine.errors import OverloadedError, StepError
from rnn_engine.requests import Event, GenerateRequest
from rnn_engine_server.apis.ollama import routes as ollama
from rnn_engine_server.apis.ollama.schemas import PullStatus
from rnn_engine_server.apis.openai import fine_tuning
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import CLOCK, HEADERS_SECONDS, SILENCE_SECONDS, Piece
from rnn_engine_server.core.routing import EVENTS
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client

HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}
GENERATIONS: dict[str, Body] = {
    "/v1/chat/completions": {**HI, "stream": True},
    "/v1/completions": {"prompt": "Hi", "stream": True},
    "/v1/responses": {"input": "Hi", "stream": True},
    "/v1/messages": {**HI, "max_tokens": 50, "stream": True},
    "/api/chat": HI,
    "/api/generate": {"prompt": "Hi"},
    "/completion": {"prompt": "Hi", "stream": True},
    "/generate": {"inputs": "Hi", "stream": True},
    "/": {"inputs": "Hi", "stream": True},
    "/generate_stream": {"inputs": "Hi"},
    "/api/extra/generate/stream": {"prompt": "Hi"},
    "/api/oai/completions": {"prompt": "Hi", "stream": True},
    "/api/oai/chat/completions": {**HI, "stream": True},
}
OTHERS = {
    "/v1/responses/{id}",
    "/v1/fine_tuning/jobs/{id}/events",
    "/v1/engine/events",
    "/api/pull",
    "/api/models/state",
}


PING = re.compile(rb': ping\n\n|event: ping\n.*\n\n|"(content|response)":"".*\n|"status":.*\n')


class HandClock:
    """A clock that a test sets by hand."""

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = count()
        self._timers: list[tuple[float, int, asyncio.Handle]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self._now + delay, callback, (), asyncio.get_running_loop())
        heapq.heappush(self._timers, (self._now + delay, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                timer._run()
        self._now = end


class SilentEngine(FakeEngine):
    """An engine that generates nothing before `speak` is set, and then may fail with `error`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.speak = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def generate(self, request: GenerateRequest, *, wait_for_room: bool = False) -> AsyncGenerator[Event, None]:
        self.asked.set()
        await self.speak.wait()
        if self.error is not None:
            raise self.error
        async for event in super().generate(request, wait_for_room=wait_for_room):
            yield event


class Silence:
    """A server with a clock that is set by hand, over an engine that is silent at first."""

    def __init__(self, client: Client, clock: HandClock, engine: SilentEngine) -> None:
        self.client, self.clock, self.engine = client, clock, engine

    async def open(self, method: str, path: str, body: Body | None = None) -> ClientResponse:
        """Send a request whose answer the engine does not begin, and return the response when its headers have come."""
        sending = asyncio.create_task(self.client.request(method, path, json=body))
        await self.engine.asked.wait()
        self.clock.advance(HEADERS_SECONDS)
        return await sending

    async def ping(self, response: ClientResponse) -> bytes:
        """Return what comes until something without a meaning does, after some seconds of silence."""
        self.clock.advance(SILENCE_SECONDS)
        found = b""
        while not PING.search(found):
            assert not response.content.at_eof(), found
            found += await response.content.readany()
        return found


@pytest.fixture
async def silence() -> AsyncIterator[Silence]:
    engine, clock = SilentEngine(), HandClock()
    app = make_app(engine, ServerSettings())
    app[CLOCK] = clock
    async with TestClient(TestServer(app)) as client:
        yield Silence(client, clock, engine)
        engine.speak.set()


def test_all_streaming_routes_are_tried() -> None:
    streams = {route.path for route in ALL_ROUTES if route.chunk is not None or route.content_type == EVENTS}
    assert streams == GENERATIONS.keys() | OTHERS


@pytest.mark.parametrize("path", GENERATIONS)
async def test_a_generation_sends_headers_and_pings_while_nothing_is_said(silence: Silence, path: str) -> None:
    response = await silence.open("POST", path, GENERATIONS[path])
    assert response.status == 200
    pings = [await silence.ping(response) for _ in range(3)]
    silence.engine.hold = 5
    silence.engine.speak.set()
    await silence.engine.held.wait()
    before = await silence.ping(response)
    silence.engine.release.set()
    after = await response.content.read()
    if path.startswith("/api/") and response.content_type == "application/x-ndjson":
        lines = [json.loads(line) for line in b"".join((*pings, before, after)).splitlines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        said = [line.get("response", line.get("message", {}).get("content")) for line in lines]
        assert said[:3] == ["", "", ""]
        assert "".join(said).strip() == "Hello there!"
    elif path == "/v1/messages":
        assert set(pings) == {b'event: ping\ndata: {"type":"ping"}\n\n'}
    else:
        assert set(pings) == {b": ping\n\n"}
        assert b"data: " in after


async def test_what_is_said_puts_off_the_next_ping(silence: Silence) -> None:
    silence.engine.hold = 5
    response = await silence.open("POST", "/v1/completions", GENERATIONS["/v1/completions"])
    silence.clock.advance(SILENCE_SECONDS - 1)
    silence.engine.speak.set()
    await silence.engine.held.wait()
    silence.clock.advance(SILENCE_SECONDS - 1)  # since the last event
    silence.engine.release.set()
    assert b"ping" not in await response.read()


@pytest.mark.parametrize("path", GENERATIONS)
async def test_an_error_soon_has_a_status_and_a_later_one_is_an_event(silence: Silence, path: str) -> None:
    silence.engine.error = OverloadedError("the queue is full", 1.0)
    sending = asyncio.create_task(silence.client.post(path, json=GENERATIONS[path]))
    await silence.engine.asked.wait()
    silence.engine.speak.set()
    assert (await sending).status == 429

    silence.engine.speak.clear()
    silence.engine.asked.clear()
    silence.engine.error = StepError("the device was lost")
    response = await silence.open("POST", path, GENERATIONS[path])
    silence.engine.speak.set()
    assert response.status == 200
    assert "the device was lost" in await response.text()


@pytest.mark.parametrize("path", ["/v1/engine/events?interval=60", "/api/models/state"])
async def test_a_stream_of_a_status_is_not_silent(silence: Silence, path: str) -> None:
    response = await silence.client.get(path)
    assert (await response.content.readuntil(b"\n\n")).startswith(b"data: ")
    if "interval" in path:
        assert await silence.ping(response) == b": ping\n\n"
    response.close()


async def test_a_pull_repeats_its_status(silence: Silence, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = asyncio.Event()

    async def lines(_call: Call, _name: str) -> AsyncGenerator[PullStatus, None]:
        silence.engine.asked.set()
        await go_on.wait()
        yield {"status": "loading the model"}
        go_on.clear()
        await go_on.wait()
        yield {"status": "success"}

    monkeypatch.setattr(ollama, "_pull", lines)
    response = await silence.open("POST", "/api/pull", {"model": "a/b"})
    assert await silence.ping(response) == b'{"status":"pulling manifest"}\n'
    go_on.set()
    assert await response.content.readline() == b'{"status":"loading the model"}\n'
    assert await silence.ping(response) == b'{"status":"loading the model"}\n'
    go_on.set()
    assert await response.content.read() == b'{"status":"success"}\n'


async def test_a_response_in_the_background_and_its_later_readers_are_not_silent(silence: Silence) -> None:
    response = await silence.open("POST", "/v1/responses", {"input": "Hi", "background": True, "stream": True})
    first = await response.content.readuntil(b"\n\n")
    name = json.loads(first.partition(b"data: ")[2])["response"]["id"]
    await response.content.readuntil(b"\n\n")
    assert await silence.ping(response) == b": ping\n\n"
    later = await silence.client.get(f"/v1/responses/{name}?stream=true")
    for _ in range(2):
        await later.content.readuntil(b"\n\n")
    silence.clock.advance(SILENCE_SECONDS)
    for reader in (response, later):
        assert await reader.content.readuntil(b"\n\n") == b": ping\n\n"
    silence.engine.speak.set()
    for reader in (response, later):
        events = [event for event in (await reader.text()).split("\n\n") if event.startswith("event")]
        numbers = [json.loads(event.partition("data: ")[2])["sequence_number"] for event in events]
        assert numbers == list(range(2, 2 + len(numbers)))  # what was kept has no pings that would count


async def test_the_events_of_a_tuning_job_are_not_silent(silence: Silence, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*_: object) -> AsyncGenerator[Piece, None]:
        yield ()
        await silence.engine.speak.wait()

    async def job(*_: object) -> SimpleNamespace:
        return SimpleNamespace()

    monkeypatch.setattr(fine_tuning, "own", job)
    monkeypatch.setattr(fine_tuning, "_event_pieces", wait)
    response = await silence.client.get("/v1/fine_tuning/jobs/x/events?stream=true")
    assert await silence.ping(response) == b": ping\n\n"
    silence.engine.speak.set()
    assert await response.content.read() == b""
