"""Ollama's API, with its official client: over answers that a test chooses, and of the demo model."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

import ollama
import pytest
from aiohttp.test_utils import TestServer

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.interface import EngineLike
from rnn_engine.operations.embedding import EmbeddingSettings, embed
from rnn_engine_server.apis.ollama.schemas import (
    Embedded,
    OllamaChat,
    OllamaError,
    OllamaModelFacts,
    OllamaModels,
    OllamaText,
)
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.models.registry import MODELS
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import PIECES, Body, Load, Serve, Through, check_shape, post

HI = [{"role": "user", "content": "Hi"}]
WEATHER: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = ' Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


async def client_of(engine: EngineLike) -> AsyncIterator[ollama.AsyncClient]:
    async with (
        TestServer(make_app(engine, ServerSettings())) as server,
        ollama.AsyncClient(host=str(server.make_url(""))) as client,
    ):
        yield client


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(reply=lambda request: f" Hi {len(request.prompt)}")


@pytest.fixture
async def client(through: Through, engine: FakeEngine) -> AsyncIterator[ollama.AsyncClient]:
    async for client in client_of(await through(engine)):
        yield client


def prompt_of(engine: FakeEngine) -> str:
    return engine.detokenize(engine.requests[-1].prompt).decode()


async def test_a_chat(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    options = {"temperature": 0.5, "num_predict": 9, "seed": 3, "stop": ["x"], "num_ctx": 4096, "min_p": 0.1}
    answer = await client.chat("fake:latest", HI, options=options, keep_alive="5m")
    assert (answer.message.content, answer.done_reason, answer.model) == ("Hi 20", "stop", "fake")
    assert (answer.prompt_eval_count, answer.eval_count) == (20, len(" Hi 20"))
    [call] = engine.requests
    assert (call.max_tokens, call.sampling.seed, call.sampling.min_p) == (9, 3, 0.1)
    assert list(call.stop) == [b"x", b"\n\n"]


async def test_a_stream_tells_what_the_whole_answer_does(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    engine.reply = lambda _: f"<think>\nWhere?\n</think>\n{CALL}"
    whole = await client.chat("fake", HI, tools=[WEATHER])
    lines = [line async for line in await client.chat("fake", HI, tools=[WEATHER], stream=True)]
    assert (whole.message.thinking, whole.message.content) == ("Where?", "Let me look.")
    assert "".join(line.message.thinking or "" for line in lines) == whole.message.thinking
    assert "".join(line.message.content or "" for line in lines) == whole.message.content
    assert [called(line) for line in lines if line.message.tool_calls] == [called(whole)]
    assert called(whole) == [("weather", {"city": "Paris"})]
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].eval_count == whole.eval_count


def called(answer: ollama.ChatResponse) -> list[tuple[str, Mapping[str, Any]]]:
    return [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or ()]


@pytest.mark.parametrize(
    "arguments",
    ['{"city": Paris}', '{"city": NaN}', '{"city": 1e999}', '{"city": ' + "[" * 5000 + "]" * 5000 + "}"],
    ids=["wrong", "not a number", "infinite", "deep"],
)
async def test_arguments_that_are_no_object_are_empty(
    client: ollama.AsyncClient, engine: FakeEngine, arguments: str
) -> None:
    engine.reply = lambda _: f'<tool_call>\n{{"name": "weather", "arguments": {arguments}'
    most = {"num_predict": 20_000}
    whole = await client.chat("fake", HI, tools=[WEATHER], options=most)
    lines = [line async for line in await client.chat("fake", HI, tools=[WEATHER], stream=True, options=most)]
    assert called(whole) == [("weather", {})]
    assert [called(line) for line in lines if line.message.tool_calls] == [called(whole)]


@PIECES
async def test_the_lines_of_a_stream(serve: Serve) -> None:
    response = await (await serve(FakeEngine(reply=lambda _: " Hi"))).post("/api/chat", json={"messages": HI})
    assert response.content_type == "application/x-ndjson"
    lines = [json.loads(line) for line in (await response.text()).splitlines()]
    for line in lines:
        check_shape(OllamaChat, line)
    assert [line["message"]["content"] for line in lines] == ["H", "i", ""]


async def test_results_of_tools_follow_their_calls(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    messages: list[Mapping[str, Any]] = [
        *HI,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "dry"},
    ]
    await client.chat("fake", messages, tools=[WEATHER])
    assert prompt_of(engine).endswith(
        'Assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n\n'
        "Observation: dry\n\nAssistant:"
    )


async def test_thinking_and_schemas(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    engine.chat_template = WorldTemplate(thinks=True)
    await client.chat("fake", HI, think=True)
    assert prompt_of(engine).endswith("Assistant: <think")
    await client.chat("fake", HI, format="json")
    await client.chat("fake", HI, format={"type": "object"})
    grammars = [request.grammar for request in engine.requests if request.grammar is not None]
    assert [grammar.kind for grammar in grammars] == ["json_object", "json_schema"]


async def test_a_text(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    answer = await client.generate("fake", "Hi", system="Be short.")
    assert (answer.response, answer.done_reason) == ("Hi 39", "stop")
    assert prompt_of(engine) == "System: Be short.\n\nUser: Hi\n\nAssistant:"
    lines = [line async for line in await client.generate("fake", "Hi", stream=True)]
    assert "".join(line.response or "" for line in lines) == "Hi 20"
    raw = await client.generate("fake", "Hi", raw=True)
    assert (raw.response, prompt_of(engine)) == (" Hi 2", "Hi")


async def test_a_request_without_a_prompt_loads_the_model(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.generate("fake")).done_reason == "load"
    assert (await client.chat("fake")).done_reason == "load"
    assert engine.requests == []


@pytest.mark.parametrize(("running", "left"), [(0, 7200), (1, 10800)])
async def test_a_model_that_is_freed_when_it_is_idle_expires(serve: Serve, running: int, left: int) -> None:
    client = await serve(FakeEngine(), ServerSettings(idle_unload_seconds=10800))
    model = client.app[MODELS].default
    model.used -= 3600
    model.running = running
    [entry] = (await (await client.get("/api/ps")).json())["models"]
    expires = datetime.fromisoformat(entry["expires_at"]).timestamp()
    assert expires == pytest.approx(time.time() + left, abs=1000)


async def test_a_model_that_is_never_freed_does_not_expire(serve: Serve) -> None:
    [entry] = (await (await (await serve(FakeEngine())).get("/api/ps")).json())["models"]
    assert entry["expires_at"] == "9999-12-31T23:59:59Z"


async def test_models(client: ollama.AsyncClient, serve: Serve) -> None:
    assert [model.model for model in (await client.list()).models] == ["fake"]
    assert [model.model for model in (await client.ps()).models] == ["fake"]
    facts = await client.show("fake")
    assert facts.modelinfo is not None
    assert facts.modelinfo["general.architecture"] == "rwkv7"
    assert "tools" in (facts.capabilities or ())
    raw = await serve(FakeEngine())
    check_shape(OllamaModels, await (await raw.get("/api/tags")).json())
    check_shape(OllamaModelFacts, await (await raw.post("/api/show", json={"name": "fake"})).json())
    assert (await (await raw.get("/api/version")).json())["version"]


async def test_errors_are_the_clients_own(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    with pytest.raises(ollama.ResponseError, match="top_p: 7") as refused:
        await client.chat("fake", HI, options={"top_p": 7})
    assert refused.value.status_code == 400
    engine.fail_at = 3
    with pytest.raises(ollama.ResponseError, match="device was lost"):
        async for _ in await client.chat("fake", HI, stream=True):
            pass


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("chat", {"messages": [{"role": "user", "content": "Hi", "images": ["aGk="]}]}, "reads and writes text only"),
        ("chat", {"messages": [{"role": "who", "content": "Hi"}]}, "messages.0.role"),
        ("chat", {"messages": HI, "format": "yaml"}, "JSON schema"),
        ("chat", {"messages": HI, "format": "json", "options": {"guided_regex": "a"}}, "null, since"),
        ("chat", {"messages": HI, "options": {"temprature": 1}}, "did you mean 'temperature'?"),
        ("chat", {"messages": HI, "logprobs": True}, "logprobs"),
        ("generate", {"prompt": "Hi", "suffix": "x"}, "fill in"),
        ("generate", {"prompt": "Hi", "context": [1]}, "/api/chat"),
        ("generate", {"prompt": "Hi", "options": {"n": 2}}, "there is one answer"),
    ],
)
async def test_what_is_wrong_is_refused(serve: Serve, path: str, body: Body, words: str) -> None:
    engine = FakeEngine()
    response = await (await serve(engine)).post(f"/api/{path}", json=body)
    answer = await response.json()
    assert response.status == 400, answer
    check_shape(OllamaError, answer)
    assert words in answer["error"]
    assert engine.requests == []


async def test_fields_of_this_server_are_options(serve: Serve) -> None:
    engine = FakeEngine()
    body = {"prompt": "Hi", "stream": False, "options": {"save_as": "talk", "cache_salt": "s"}}
    answer = await post(await serve(engine), "/api/generate", OllamaText, body)
    assert answer["saved_state"]["name"] == "talk"
    assert engine.requests[0].cache_scope != ""


async def test_the_demo_model_calls_a_tool(load: Load) -> None:
    async for client in client_of(await load(demo_choice(2))):
        answer = await client.chat(
            "demo",
            [{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[WEATHER],
            options={"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0, "num_predict": 100},
        )
        assert called(answer) == [("weather", {"city": "Paris"})]
        assert answer.total_duration is not None
        assert answer.eval_duration is not None
        assert answer.total_duration >= answer.eval_duration >= 0


async def test_embeddings(client: ollama.AsyncClient, engine: FakeEngine) -> None:
    settings = EmbeddingSettings()
    expected = [one.vector.tolist() for one in await embed(engine, [encode("ab"), encode("c")], settings)]
    answer = await client.embed("fake:latest", ["ab", "c"], truncate=True, keep_alive="5m", options={"num_ctx": 9})
    assert [list(vector) for vector in answer.embeddings] == expected
    assert (answer.model, answer.prompt_eval_count) == ("fake", 3)
    assert len((await client.embed("fake", "ab", dimensions=3)).embeddings[0]) == 3
    assert list((await client.embeddings("fake", "ab")).embedding) == expected[0]


async def test_the_older_embeddings_are_of_one_text(serve: Serve) -> None:
    http = await serve(FakeEngine())
    check_shape(Embedded, await (await http.post("/api/embed", json={"input": "a"})).json())
    response = await http.post("/api/embeddings", json={"prompt": ["a", "b"]})
    assert response.status == 400
    assert "one text" in (await response.json())["error"]
