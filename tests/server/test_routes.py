"""The small routes, and the names under which every route answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from aiohttp import web

from rnn_engine.interface import DevicePart
from rnn_engine.model import LoraChoice
from rnn_engine_server.apis.common.owned import ListOf
from rnn_engine_server.apis.engine.tokens import Text, Tokens
from rnn_engine_server.apis.openai.models import HealthBody, ModelEntry
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Serve, check_shape, error_of, post


async def test_models(serve: Serve) -> None:
    client = await serve(FakeEngine())
    listed = await (await client.get("/v1/models")).json()
    check_shape(ListOf[ModelEntry], listed)
    [entry] = listed["data"]
    assert entry["max_model_len"] == ServerSettings().limits.max_prompt_tokens
    assert (entry["id"], entry["meta"]["vocab_size"], entry["meta"]["num_slots"]) == ("fake", 257, 2)
    one = await (await client.get("/v1/models/fake")).json()
    check_shape(ModelEntry, one)
    assert one == entry


async def test_ai00s_routes_answer_under_both_of_its_prefixes(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert (await client.get("/api/oai/models")).status == (await client.get("/api/oai/v1/models")).status == 200
    routes = [route for route in ALL_ROUTES if route.path.startswith("/api/oai/")]
    assert routes
    for route in routes:
        for path in route.paths[:2]:
            assert path.startswith(("/api/oai/", "/api/oai/v1/"))
            assert (await client.request(route.method, path, json={})).status in (200, 400, 501), path
        assert len(set(route.paths)) == 2 + len(route.also)


async def handler(_request: web.Request) -> web.Response:
    return web.Response()


@pytest.mark.parametrize(
    ("path", "paths"),
    [("/v1/x", ("/v1/x", "/y")), ("/api/oai/x", ("/api/oai/x", "/api/oai/v1/x", "/y")), ("/x", ("/x", "/y"))],
)
def test_paths_of_a_route(path: str, paths: tuple[str, ...]) -> None:
    assert Route("GET", path, handler, "", dict, also=("/y",)).paths == paths


async def test_health(serve: Serve) -> None:
    client = await serve(FakeEngine())
    body = await (await client.get("/health")).json()
    check_shape(HealthBody, body)
    idle = {"requests": 0, "active": 0, "queued": 0, "cache_look_ups": 0, "cache_hits": 0}
    assert body == {"status": "ok", "model": "fake", "models": {"fake": "loaded"}, "parts": {}, **idle}


async def test_health_of_a_model_on_several_devices(serve: Serve) -> None:
    engine = FakeEngine()
    parts = (DevicePart("a card", 0, 3, 5000), DevicePart("cpu", 4, 5))
    with patch.object(FakeEngine, "info", replace(engine.info, parts=parts)):
        client = await serve(engine)
        body = await (await client.get("/health")).json()
        check_shape(HealthBody, body)
        [entry] = (await (await client.get("/v1/models")).json())["data"]
    assert body["parts"] == {"fake": entry["meta"]["parts"]}
    assert body["parts"]["fake"][1] == {"device": "cpu", "first_layer": 4, "last_layer": 5, "num_bytes": None}


async def test_head_of_what_can_be_got(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert [(await client.head(path)).status for path in ("/health", "/v1/models", "/v1/models/x")] == [200, 200, 404]


async def test_tokenize(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for name in ("content", "prompt"):
        answer = await post(client, "/tokenize", Tokens, {name: "hé"})
        assert answer == {"tokens": encode("hé"), "count": 3}


async def test_detokenize(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert await post(client, "/detokenize", Text, {"tokens": encode("hé")}) == {
        "content": "hé",
        "prompt": "hé",
        "bytes": [104, 195, 169],
    }
    assert (await post(client, "/detokenize", Text, {"tokens": encode("é")[:1]}))["content"] == "\ufffd"


async def test_detokenize_refuses_unknown_tokens(serve: Serve) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/detokenize", json={"tokens": [1, 257]}), 400)
    assert error["message"] == "token 1: 257 is not allowed; expected a token id from 0 to 256"


async def test_the_loras_of_a_model_are_listed(serve: Serve) -> None:
    loras = (LoraChoice(Path("folder/lora.st"), 32.0), LoraChoice(Path("peft")))
    one = await (await (await serve(FakeEngine(loras=loras))).get("/v1/models/fake")).json()
    assert one["meta"]["loras"] == [{"name": "lora.st", "alpha": 32.0}, {"name": "peft", "alpha": None}]


@pytest.mark.parametrize("path", ["/models", "/v1/health"])
async def test_paths_of_llama_server(serve: Serve, path: str) -> None:
    assert (await (await serve(FakeEngine())).get(path)).status == 200


async def test_chat_answers_without_v1(serve: Serve) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert (await (await serve(FakeEngine())).post("/chat/completions", json=body)).status == 200
