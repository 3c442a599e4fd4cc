"""The OpenAPI document and the page that shows it."""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from typing import Any, ClassVar

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from pydantic import Field

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.schema import Only, RequestBody
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from rnn_engine_server.openapi.document import ApiDocument, KeptDocuments, describe_bodies, make_document, plain_path
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve


@cache  # and not made when tests are collected, in each process
def document() -> ApiDocument:
    return make_document(ALL_ROUTES, asks_for_key=False)


def operation(method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = document()["paths"][path][method]
    return found


async def test_the_document_is_made_once_for_all_who_ask_at_once() -> None:
    made: list[str] = []

    def make(server: str) -> dict[str, object]:
        made.append(server)
        return {"server": server}

    documents = KeptDocuments(make)
    assert set(await asyncio.gather(*(documents.get(".") for _ in range(20)))) == {b'{"server": "."}'}
    assert await documents.get("..") == b'{"server": ".."}'
    assert made == [".", ".."]


def test_it_is_openapi() -> None:
    validate(document())


def test_it_has_every_route_under_every_path() -> None:
    expected = {(plain_path(path), route.method.lower()) for route in ALL_ROUTES for path in route.paths}
    assert {(path, method) for path, methods in document()["paths"].items() for method in methods} == expected
    assert operation("post", "/chat/completions")["x-alias-of"] == "/v1/chat/completions"


def test_openai_is_listed_first() -> None:
    assert [tag["name"] for tag in document()["tags"]][:4] == ["chat", "completions", "responses", "conversations"]
    assert next(iter(document()["paths"])) == "/v1/chat/completions"


def test_operations_have_names_of_their_own() -> None:
    names = [one["operationId"] for methods in document()["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("asks_for_key", [False, True])
async def test_it_is_served_to_anybody(serve: Serve, asks_for_key: bool) -> None:
    keys = (ApiKey.of("key", "ann", Scope.USE),) if asks_for_key else ()
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(keys)))
    expected = json.loads(json.dumps(make_document(ALL_ROUTES, asks_for_key=asks_for_key)))
    assert expected["servers"] == [{"url": "."}]
    for path, server in (("/openapi.json", "."), ("/api-docs/openapi.json", "..")):
        response = await client.get(path)
        assert response.content_type == "application/json"
        assert await response.json() == {**expected, "servers": [{"url": server}]}


class TestAnswers:
    def test_a_stream_is_told_beside_the_whole_answer(self) -> None:
        content = operation("post", "/v1/chat/completions")["responses"]["200"]["content"]
        assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatCompletion"}
        event = content["text/event-stream"]["x-event-schema"]
        assert event == {
            "anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("ChatCompletionChunk", "ErrorBody")]
        }

    @pytest.mark.parametrize(
        ("method", "path", "types"),
        [
            ("post", "/api/chat", ["application/json", "application/x-ndjson"]),
            ("post", "/generate_stream", ["text/event-stream"]),
            ("get", "/v1/states/{name}/export", ["application/octet-stream"]),
            ("get", "/metrics", ["text/plain"]),
        ],
    )
    def test_content_types(self, method: str, path: str, types: list[str]) -> None:
        assert list(operation(method, path)["responses"]["200"]["content"]) == types

    def test_errors_come_in_the_words_of_each_api(self) -> None:
        told = {
            path: document()["components"]["responses"][name]["content"]["application/json"]["schema"]["$ref"]
            for path, status in [("/v1/messages", 400), ("/api/chat", 400), ("/generate", 422), ("/completion", 400)]
            for name in [operation("post", path)["responses"][str(status)]["$ref"].rpartition("/")[2]]
        }
        assert told == {
            "/v1/messages": "#/components/schemas/AnthropicError",
            "/api/chat": "#/components/schemas/OllamaError",
            "/generate": "#/components/schemas/TgiError",
            "/completion": "#/components/schemas/ErrorBody",
        }

    def test_what_is_always_refused_has_no_other_answer(self) -> None:
        assert "200" not in operation("post", "/infill")["responses"]

    def test_a_health_that_is_bad_is_no_error(self) -> None:
        content = operation("get", "/health")["responses"]["503"]["content"]
        assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/HealthBody"}


class Body(RequestBody):
    """A body with every feature that bodies may have."""

    ignored: ClassVar = frozenset({"user"})
    neutral: ClassVar = {"seed_mode": ("none", 0), "quiet": Only((False,), because="it is never told")}
    aliases: ClassVar = {"inputs": "prompt", "limit": "most"}

    prompt: str = Field(description="The text.")
    most: int = Field(default=5, ge=0, description="The most.")


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"prompt": "a"}, True),
        ({"inputs": "a"}, True),
        ({}, False),
        ({"prompt": 1}, False),
        ({"prompt": "a", "most": None}, True),
        ({"prompt": "a", "limit": 3}, True),
        ({"prompt": "a", "limit": -1}, False),
        ({"prompt": "a", "user": {"any": "thing"}}, True),
        ({"prompt": "a", "seed_mode": 0}, True),
        ({"prompt": "a", "seed_mode": "other"}, False),
        ({"prompt": "a", "quiet": False}, True),
        ({"prompt": "a", "quiet": 0}, False),
        ({"prompt": "a", "unknown": None}, True),
        ({"prompt": "a", "unknown": 1}, False),
    ],
)
def test_a_schema_says_what_a_body_accepts(body: dict[str, Any], fits: bool) -> None:
    schemas, shared = describe_bodies([Body])
    validator = Draft202012Validator({**schemas[Body], "components": {"schemas": shared}})
    assert validator.is_valid(body) == fits
    if fits:
        Body.parse(json.dumps(body).encode())
    else:
        with pytest.raises(InvalidRequestError):
            Body.parse(json.dumps(body).encode())


@pytest.mark.parametrize("strict", [True, False])
async def test_it_says_whether_unknown_fields_are_refused(serve: Serve, strict: bool) -> None:
    client = await serve(FakeEngine(), ServerSettings(strict=strict))
    schemas = (await (await client.get("/openapi.json")).json())["components"]["schemas"]
    assert schemas["TokenizeRequest"]["additionalProperties"] == ({"type": "null"} if strict else {})
    response = await client.post("/tokenize", json={"content": "a", "unknown": 1})
    assert response.status == (400 if strict else 200)


class TestPage:
    @pytest.mark.parametrize("path", ["/docs", "/api-docs"])
    async def test_it_is_served(self, serve: Serve, path: str) -> None:
        response = await (await serve(FakeEngine())).get(path)
        assert (response.status, response.content_type) == (200, "text/html")
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "img-src data:" in policy  # the page's icon is an empty one

    async def test_it_has_nothing_from_elsewhere(self, serve: Serve) -> None:
        text = await (await (await serve(FakeEngine())).get("/docs")).text()
        assert re.findall(r"""(?:https?:|["'(])//\w""", text) == []
        assert "fetch(`${base}openapi.json`)" in text
