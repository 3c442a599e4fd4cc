"""No route handles a large body or a large answer on the event loop's thread."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from typing import Any

import pytest

from rnn_engine.errors import check_text
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.openapi.document import EXAMPLES
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve
from tests.support.loop_guard import LoopGuard

ROUTES = [route for route in ALL_ROUTES if route.request is not None and not route.always]


def enlarged(value: Any, count: int) -> Iterator[Any]:  # noqa: ANN401
    """Yield the value with one of its parts made large."""
    match value:
        case str():
            yield value + " and more" * (8 * count)
        case list():
            yield value * count
            for larger in enlarged(value[0], count) if value else ():
                yield [larger, *value[1:]]
        case dict():
            for name, part in value.items():
                for larger in enlarged(part, count):
                    yield {**value, name: larger}


LONG = " and more" * 20_000
SCORED = " and more" * 3000  # the answer has several values for each of its tokens
TOOL = {"type": "function", "name": "look_up", "description": LONG}
MESSAGES = [{"role": ("user", "assistant")[number % 2], "content": f"Line {number}."} for number in range(8001)]
SETTINGS = ServerSettings(any_model=True)


async def check_answer(client: Client, path: str, body: object, statuses: Container[int]) -> None:
    """Send a body, read the answer, and check that the loop's thread handled neither."""
    data = json.dumps(body).encode()
    with LoopGuard() as guard:
        async with client.session.post(client.make_url(path), data=data) as response:
            answer = await response.read()
    assert guard.offences == {}
    assert response.status in statuses, answer[:1000]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_large_fields_are_handled_elsewhere(serve: Serve, route: Route) -> None:
    assert route.request is not None
    client = await serve(FakeEngine(), SETTINGS)
    made = await (await client.post("/v1/conversations", json={})).json()
    path = route.path.replace("{id}", made["id"] if "conversations" in route.path else "0")
    for body in enlarged(EXAMPLES[route.request.__name__], 2000):
        await check_answer(client, path, body, (200, 400, 403, 404, 422, 501))
        if route.chunk is not None:
            await check_answer(client, path, {**body, "stream": True}, (200, 400, 404))


LARGE: list[tuple[str, Body]] = [
    ("/v1/responses", {"input": "a", "instructions": LONG}),
    ("/v1/responses", {"input": "a", "tools": [TOOL], "tool_choice": "none"}),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "text", "schema": LONG}}}),
    ("/v1/responses", {"input": [{"role": "user", "content": "a"}] * 4000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "verbose": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "id_slot": 0}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "grammar": LONG}),
    ("/v1/completions", {"prompt": SCORED, "echo": True, "logprobs": 1}),
    ("/v1/completions", {"prompt": LONG, "return_token_ids": True}),
    ("/v1/completions", {"prompt": "a", "state": {"data": [0.0] * 30_000, "shape": [1, 1, 1, 30_000]}}),
    ("/completion", {"prompt": LONG, "return_tokens": True}),
    ("/generate", {"inputs": SCORED, "parameters": {"details": True, "decoder_input_details": True}}),
    ("/api/generate", {"prompt": LONG}),
    ("/rerank", {"query": "a", "texts": [LONG, "b"], "return_text": True}),
    ("/score", {"text_1": "a", "text_2": [LONG, "b"]}),
    ("/api/v1/generate", {"prompt": LONG}),
    ("/api/extra/tokencount", {"prompt": LONG}),
    ("/embed_all", {"inputs": SCORED}),
    ("/v1/choices", {"input": SCORED, "choices": ["a", SCORED]}),
    ("/v1/embeddings", {"input": LONG}),
    ("/v1/embeddings", {"input": ["a"] * 2048}),
    ("/v1/embeddings", {"input": ["a"] * 1000, "encoding_format": "base64"}),
    ("/api/embed", {"input": ["a"] * 1000}),
    ("/embed", {"inputs": ["a"] * 1000}),
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": ["a"] * 1000, "max_tokens": 1}),
    ("/v1/score", {"text_1": "a", "text_2": ["b"] * 1000}),
    ("/v1/rerank", {"query": "a", "documents": ["b"] * 1000}),
    ("/v1/choices", {"input": "a", "choices": [f"b{number}" for number in range(1000)]}),
    ("/v1/tokenize", {"messages": MESSAGES}),
    ("/v1/states/s/advance", {"input": SCORED}),
]


@pytest.mark.parametrize(("path", "body"), LARGE, ids=lambda each: each if isinstance(each, str) else "-".join(each))
async def test_large_requests_are_handled_elsewhere(serve: Serve, path: str, body: Body) -> None:
    client = await serve(FakeEngine(), SETTINGS)
    assert (await client.post("/v1/states", json={"name": "s", "prompt": "a"})).status == 200
    await check_answer(client, path, body, (200, 400, 422))
    if path.startswith(("/v1/responses", "/v1/c", "/completion", "/api")) and path != "/v1/choices":
        await check_answer(client, path, {**body, "stream": True}, (200, 400))


async def test_what_is_kept_is_read_and_gone_on_with_elsewhere(serve: Serve) -> None:
    client = await serve(FakeEngine(), SETTINGS)
    said = [{"role": "user", "content": "a" * 500}] * 500
    made = await (await client.post("/v1/responses", json={"input": said, "instructions": LONG})).json()
    talk = await (await client.post("/v1/conversations", json={"items": said})).json()
    first, second = f"/v1/responses/{made['id']}", f"/v1/conversations/{talk['id']}"
    for path in (first, f"{first}/input_items?limit=100", second, f"{second}/items?limit=100"):
        with LoopGuard() as guard:
            async with client.session.get(client.make_url(path)) as response:
                assert response.status == 200, await response.text()
                await response.read()
        assert guard.offences == {}
    for before in ({"previous_response_id": made["id"]}, {"conversation": talk["id"]}):
        await check_answer(client, "/v1/responses", {"input": "b", **before}, (200,))
    await check_answer(client, f"{second}/items", {"items": said}, (200,))


async def test_the_guard_sees_what_the_loop_does() -> None:
    """The guard notes text that is encoded, made or searched, and many calls."""
    with LoopGuard(most_calls=100) as guard:
        to_json({"text": LONG})
        check_text(LONG)
        for number in range(200):
            to_json(number)
    assert set(guard.offences) >= {"bodies.py:to_json returned", "errors.py:check_text encode", "bodies.py:to_json"}
