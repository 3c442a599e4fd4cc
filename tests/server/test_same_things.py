"""Fields and models that are the same thing on several routes: none is left out in silence."""

from __future__ import annotations

import pytest

from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve

USER: Body = {"messages": [{"role": "user", "content": "Hi"}]}
TEXTS = {"prompt", "input", "inputs", "messages", "context", "query", "documents", "text", "texts", "content"}
OF_A_MODEL: dict[str, Body] = {
    "/v1/chat/completions": USER,
    "/v1/chat/completions/input_tokens": USER,
    "/v1/apply-template": USER,
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/choices": {"input": "a", "choices": ["b"]},
    "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [5]},
    "/v1/states/compare": {},
    "/v1/collections": {"name": "c"},
    "/v1/messages": {**USER, "max_tokens": 5},
    "/v1/messages/count_tokens": {**USER, "max_tokens": 5},
    "/api/chat": {**USER, "stream": False},
    "/api/generate": {"prompt": "Hi", "stream": False},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
    "/completion": {"prompt": "Hi"},
    "/slots/0?action=erase": {},
    "/embedding": {"content": "Hi"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/generate": {"inputs": "Hi"},
    "/embed": {"inputs": "Hi"},
    "/score": {"text_1": "a", "text_2": "b"},
    "/pooling": {"input": "Hi"},
    "/api/v1/generate": {"prompt": "Hi"},
    "/api/oai/completions": {"prompt": "Hi"},
    "/api/oai/chat/completions": USER,
    "/api/oai/chooses": {"input": "a", "choices": ["b"]},
}


@pytest.mark.parametrize("path", OF_A_MODEL)
async def test_a_model_with_an_unknown_state_is_not_found(serve: Serve, path: str) -> None:
    client = await serve(FakeEngine())
    body = OF_A_MODEL[path]
    response = await client.post(path, json={**body, "model": "fake:nothing"})
    assert response.status == 404, await response.text()
    assert "nothing" in await response.text()


def texts_of(route: Route) -> set[str]:
    assert route.request is not None
    return TEXTS & {*route.request.model_fields, *route.request.aliases, *route.request.unfolded}


READING = [route for route in ALL_ROUTES if route.request is not None and route.method == "POST" and texts_of(route)]


@pytest.mark.parametrize("route", READING, ids=lambda route: route.path)
async def test_another_routes_field_for_what_the_model_reads_is_not_left_out(serve: Serve, route: Route) -> None:
    client = await serve(FakeEngine(), ServerSettings())
    required: Body = {"choices": ["b"], "name": "c", "names": ["c"], "max_tokens": 5, "text_1": "a", "text_2": "b"}
    path = route.path.replace("{collection}", "c").replace("{name}", "c")
    assert route.request is not None
    needed = {name: value for name, value in required.items() if name in route.request.model_fields}
    for name in sorted(TEXTS - texts_of(route)):
        if name in {**route.request.neutral, **route.request.lacking} or name in route.request.ignored:
            continue
        response = await client.post(path, json={**needed, name: "Hello"})
        message = await response.text()
        assert response.status in (400, 422), (name, message)
        assert "did you mean" in message or "unknown field" in message, (name, message)
        assert any(f"'{own}'" in message for own in texts_of(route)), (name, message)


@pytest.mark.parametrize(("path", "body", "words"), [
    ("/v1/chat/completions", {**USER, "system": "Be brief."}, "role system in 'messages'"),
    ("/api/chat", {**USER, "instructions": "Be brief."}, "role system in 'messages'"),
    ("/v1/responses", {"input": "Hi", "system": "Be brief."}, "did you mean 'instructions'?"),
    ("/v1/messages", {**USER, "max_tokens": 5, "system_prompt": "Be brief."}, "did you mean 'system'?"),
    ("/v1/choices", {"prompt": "a", "choices": ["b"]}, "did you mean 'input'?"),
])  # fmt: skip
async def test_the_right_field_is_named(serve: Serve, path: str, body: Body, words: str) -> None:
    engine = FakeEngine()
    response = await (await serve(engine)).post(path, json=body)
    assert response.status == 400
    assert words in await response.text()
    assert not engine.requests
