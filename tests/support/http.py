"""Helpers of the tests of the server: sending requests, and reading and checking answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeAlias

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from pydantic import TypeAdapter
from yarl import URL

from rnn_engine.cli.session import EngineChoice
from rnn_engine.fleet.replica import ReplicaEngine
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineLike
from rnn_engine_server.core.app import Served, make_app
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.models.registry import MODELS
from tools.live_server.asking import connection, encode_request

Client: TypeAlias = TestClient[web.Request, web.Application]
Body: TypeAlias = dict[str, Any]

PIECES = pytest.mark.over_one_engine("pieces of text that are at a replica together come as one")
AT_ONCE = pytest.mark.over_one_engine("what replicas tell of themselves is up to half a second old")


def client_over(engine: Served, settings: ServerSettings | None = None) -> Client:
    """Return a client of a server, which both run while the client is entered as a context."""
    return TestClient(TestServer(make_app(engine, settings or ServerSettings())))


def engine_in(client: Client) -> EngineLike:
    """Return the engine of a server with one model."""
    engine = client.app[MODELS].default.engine
    assert engine is not None
    return engine


class Serve(Protocol):
    """A function that starts a server over an engine and returns a client of it."""

    async def __call__(self, engine: ReplicaEngine, settings: ServerSettings | None = None) -> Client: ...


class Through(Protocol):
    """A function that returns an engine the way the server reaches it, with a queue for `max_queued` requests."""

    async def __call__(self, engine: ReplicaEngine, max_queued: int = 64) -> EngineLike: ...


class Load(Protocol):
    """A function that loads a model."""

    async def __call__(self, choice: EngineChoice, progress: Progress = ..., /) -> EngineLike: ...


async def leave_during(
    asking: Coroutine[Any, Any, object], owner: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send a request; while the server awaits the method `name` of `owner`, let the client leave.

    The method goes on when the server has heard of that.
    """
    method, may_go_on, begun = getattr(owner, name), asyncio.Event(), asyncio.Event()

    async def wait_and_call(*args: object, **kwargs: object) -> object:
        begun.set()
        await may_go_on.wait()
        return await method(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, wait_and_call)
        call = asyncio.create_task(asking)
        await begun.wait()
        call.cancel()
        await asyncio.wait((call,))
        for _ in range(10):  # passes of the loop, in which the server sees that the connection has ended
            await asyncio.sleep(0)
        may_go_on.set()


async def check_head(url: str, headers: Mapping[str, str]) -> None:
    """Check that the answer to a HEAD of `url` is the head of one, and nothing after it."""
    async with connection(url) as (reader, writer):
        writer.write(encode_request("HEAD", URL(url).raw_path_qs, headers={**headers, "Connection": "close"}))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert (head.split()[1], body) == (b"200", b"")


async def post(client: Client, path: str, kind: type[object], body: Body) -> Body:
    """Return the answer to a request, after checking that it succeeded and has the shape `kind`."""
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    answer: Body = await response.json()
    check_shape(kind, answer)
    return answer


async def post_stream(client: Client, path: str, kind: type[object], body: Body) -> list[Body]:
    """Return the events of a stream, after checking that it succeeded and each has the shape `kind`."""
    response = await client.post(path, json={**body, "stream": True})
    assert response.status == 200, await response.text()
    assert response.content_type == "text/event-stream"
    chunks = events(await response.text())
    for chunk in chunks:
        check_shape(kind, chunk)
    return chunks


def events(body: str) -> list[Body]:
    """Return the JSON events of a whole stream, which must have the standard's framing and end with [DONE]."""
    frames = body.split("\n\n")
    assert frames.pop() == "", "the last event lacks its blank line"
    assert frames.pop() == "data: [DONE]"
    return [parse_event(frame) for frame in frames]


def parse_event(frame: str) -> Body:
    """Parse one event, given without its blank line."""
    assert frame.startswith("data: "), frame
    assert "\n" not in frame, frame
    event: Body = json.loads(frame.removeprefix("data: "))
    return event


def check_shape(kind: type[object], body: object) -> None:
    """Raise if `body` has a field more, a field less or one of another type than the TypedDict `kind`."""
    TypeAdapter(kind).validate_python(body, strict=True)


async def error_of(response: ClientResponse, status: int) -> Body:
    """Return the error object of an answer, after checking its shape and status."""
    body: Body = await response.json()
    assert response.status == status, body
    assert set(body) == {"error"}
    error: Body = body["error"]
    assert set(error) - {"n_prompt_tokens", "n_ctx", "line", "column"} == {"message", "type", "param", "code"}
    return error
