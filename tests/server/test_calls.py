"""Calls that the server makes itself: through the handlers of routes, without a connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from rnn_engine.errors import OverloadedError
from rnn_engine.requests import Client
from rnn_engine_server.auth.keys import ANYONE
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.call import BUDGET
from rnn_engine_server.core.handlers import DONE, Event
from rnn_engine_server.core.performing import InnerAnswer, InnerCalls
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.telemetry.records import HTTP_COUNTERS
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body

PATH = "/v1/completions"


@pytest.fixture
async def app() -> AsyncIterator[web.Application]:
    made = make_app(FakeEngine(), ServerSettings())
    runner = web.AppRunner(made)
    await runner.setup()
    yield made
    await runner.cleanup()


async def ask(
    app: web.Application, path: str, body: Body, take: Callable[[Iterable[Event]], None] | None = None
) -> InnerAnswer:
    calls = InnerCalls(app)
    route = calls.route(path)
    assert route.request is not None
    parse: Any = partial(route.request.from_value, body)
    return await calls.ask(route, parse, 100, ANYONE, Client("ann batches", is_background=True), "id", take=take)


@pytest.mark.parametrize(
    ("path", "body"),
    [(PATH, {"prompt": "Hi"}), ("/v1/embeddings", {"input": "Hi"}), ("/v1/responses", {"input": "Hi"})],
)
async def test_an_answer_tells_the_usage_that_its_body_has(app: web.Application, path: str, body: Body) -> None:
    answer = await ask(app, path, body)
    assert (answer.status, answer.failure, answer.retry_seconds) == (200, None, None)
    assert answer.usage is not None
    assert json.loads(answer.body)["usage"] == answer.usage
    assert app[HTTP_COUNTERS].requests == {("POST", path, 200): 1}
    assert app[BUDGET].held == 0


async def test_a_refusal_is_a_failure_in_the_form_of_the_route(app: web.Application) -> None:
    answer = await ask(app, "/v1/messages", {"messages": []})
    assert (answer.status, json.loads(answer.body)["type"]) == (400, "error")
    assert answer.failure is not None
    assert answer.failure.message == json.loads(answer.body)["error"]["message"]
    assert answer.retry_seconds is None


async def test_a_call_that_came_too_early_says_when_to_make_it_again(
    app: web.Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OverloadedError("the queue is full", retry_after=3.0)

    monkeypatch.setattr(FakeEngine, "generate", refuse)
    answer = await ask(app, PATH, {"prompt": "Hi"})
    assert (answer.status, answer.retry_seconds) == (429, 3.0)


async def test_the_events_of_a_stream_are_taken(app: web.Application) -> None:
    events: list[Event] = []
    answer = await ask(app, PATH, {"prompt": "Hi", "stream": True}, events.extend)
    assert (answer.status, answer.body) == (200, b"")
    assert len(events) > 2
    assert events[-1] == DONE
