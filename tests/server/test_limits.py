"""The limits of one request: each is checked before anything large is built, and `/props` lists them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.apis.engine.choices import ChoicesRequest
from rnn_engine_server.apis.engine.states import AdvanceStateRequest, CreateStateRequest, ForkStateRequest
from rnn_engine_server.apis.engine.status import Props
from rnn_engine_server.apis.engine.tokens import DetokenizeRequest, TokenizeRequest
from rnn_engine_server.apis.openai.embeddings import EmbeddingsRequest
from rnn_engine_server.apis.openai.schemas import ChatRequest, CompletionRequest
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.core.settings import BOUNDS, ConnectionSettings, Limits, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve, check_shape, error_of

SMALL = Limits(
    max_messages=3,
    max_text_bytes=100,
    max_prompt_tokens=120,
    max_answers=6,
    max_answer_tokens=60,
    max_logprob_entries=50,
    max_choices=3,
    max_inputs=3,
    max_stop_strings=2,
    max_stop_bytes=8,
    max_bias_entries=2,
)
CHATS, COMPLETIONS, CHOICES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/choices", "/v1/embeddings"
BRIEF: Body = {"max_tokens": 1}
HI: Body = {**BRIEF, "messages": [{"role": "user", "content": "Hi"}]}
TEXT: Body = {**BRIEF, "prompt": "a"}

BEYOND: list[tuple[str, Body, str, str]] = [
    (CHATS, {**HI, "messages": HI["messages"] * 4}, "messages", "max_messages"),
    (CHATS, {**HI, "messages": [{"role": "user", "content": "a" * 100}]}, "messages", "max_text_bytes"),
    (CHATS, {**HI, "messages": [{"role": "user", "content": "é" * 45}]}, "messages", "max_text_bytes"),
    (CHATS, {**HI, "template": {"record": "{content}" * 10}}, "messages", "max_text_bytes"),
    (CHATS, {**HI, "template": {"prefix": "{user}" * 20}}, "messages", "max_text_bytes"),
    (CHATS, {**HI, "template": {"sep": "-" * 100}}, "messages", "max_text_bytes"),
    (CHATS, {**HI, "names": {"user": "x" * 100}}, "messages", "max_text_bytes"),
    (CHATS, {**HI, "messages": [{"role": "user", "content": "Hello"}], "n": 6}, "messages", "max_prompt_tokens"),
    (CHATS, {**HI, "logprobs": True, "top_logprobs": 20, "max_tokens": 3}, "logprobs", "max_logprob_entries"),
    (COMPLETIONS, {**TEXT, "prompt": "a" * 101}, "prompt", "max_text_bytes"),
    (COMPLETIONS, {**TEXT, "prompt": ["é" * 30, "é" * 30]}, "prompt", "max_text_bytes"),
    (COMPLETIONS, {**TEXT, "prompt": [[1] * 60, [1] * 61]}, "prompt", "max_prompt_tokens"),
    (COMPLETIONS, {**TEXT, "prompt": [1] * 50, "n": 3}, "prompt", "max_prompt_tokens"),
    (COMPLETIONS, {**TEXT, "n": 7}, "n", "max_answers"),
    (COMPLETIONS, {**TEXT, "best_of": 7}, "n", "max_answers"),
    (COMPLETIONS, {**TEXT, "prompt": ["a", "b"], "n": 4}, "prompt", "max_answers"),
    (COMPLETIONS, {**TEXT, "n": 6, "max_tokens": 11}, "max_tokens", "max_answer_tokens"),
    (COMPLETIONS, {**TEXT, "max_tokens": 61, "stream": True, "save_as": "a"}, "max_tokens", "max_answer_tokens"),
    (COMPLETIONS, {**TEXT, "logprobs": 5, "max_tokens": 10}, "logprobs", "max_logprob_entries"),
    (COMPLETIONS, {**TEXT, "prompt": "a" * 30, "echo": True, "logprobs": 1}, "logprobs", "max_logprob_entries"),
    (COMPLETIONS, {**TEXT, "stop": ["a"] * 3}, "stop", "max_stop_strings"),
    (COMPLETIONS, {**TEXT, "stop": ["é" * 3, "abc"]}, "stop", "max_stop_bytes"),
    (COMPLETIONS, {**TEXT, "logit_bias": {"1": 1, "2": 1, "3": 1}}, "logit_bias", "max_bias_entries"),
    (CHOICES, {"choices": ["a"] * 4}, "choices", "max_choices"),
    (CHOICES, {"input": "a" * 101, "choices": ["a"]}, "input", "max_text_bytes"),
    (CHOICES, {"choices": ["a" * 60, "b" * 60]}, "choices", "max_text_bytes"),
    (CHOICES, {"input": "a" * 59, "choices": ["a", "bcd"]}, "choices", "max_prompt_tokens"),
    (CHOICES, {"choices": ["a" * 40, "b" * 21], "calibrate": True}, "choices", "max_prompt_tokens"),
    (EMBEDDINGS, {"input": ["a"] * 4}, "input", "max_inputs"),
    (EMBEDDINGS, {"input": ["a" * 60, "b" * 60]}, "input", "max_text_bytes"),
    (EMBEDDINGS, {"input": [[1] * 60, [1] * 61]}, "input", "max_prompt_tokens"),
    ("/v1/states", {"name": "s", "prompt": "a" * 101}, "prompt", "max_text_bytes"),
    ("/tokenize", {"content": "a" * 101}, "content", "max_text_bytes"),
    ("/detokenize", {"tokens": [1] * 121}, "tokens", "max_prompt_tokens"),
    ("/detokenize", {"tokens": [1] * 120}, "tokens", "max_text_bytes"),
]


@pytest.mark.parametrize(("path", "body", "param", "limit"), BEYOND)
async def test_what_is_beyond_a_limit_is_refused_by_name(
    serve: Serve, path: str, body: Body, param: str, limit: str
) -> None:
    engine = FakeEngine()
    client = await serve(engine, ServerSettings(limits=SMALL))
    error = await error_of(await client.post(path, json=body), 400)
    assert error["param"] == param
    assert error["message"].endswith(f"expected at most {getattr(SMALL, limit)} {BOUNDS[limit].unit} ({limit})")
    assert engine.requests == []


async def test_a_prompt_that_is_too_long_is_told_as_openai_and_llama_server_do(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=SMALL))
    error = await error_of(await client.post(COMPLETIONS, json={**BRIEF, "prompt": [1] * 121}), 400)
    assert (error["code"], error["type"]) == ("context_length_exceeded", "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (121, 120)


USER: Body = {"role": "user", "content": "a"}
OTHER_WORDS: list[tuple[str, Body, str]] = [
    ("/generate", {"inputs": "a", "parameters": {"best_of": 7, "max_new_tokens": 1}}, "max_answers"),
    ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 61}}, "max_answer_tokens"),
    ("/generate", {"inputs": "a", "parameters": {"stop": ["a"] * 3}}, "max_stop_strings"),
    ("/completion", {"prompt": ["a"] * 7, "n_predict": 1}, "max_answers"),
    ("/completion", {"prompt": "a", "n_predict": 10, "n_probs": 5}, "max_logprob_entries"),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 61}, "max_answer_tokens"),
    ("/v1/responses", {"input": [USER] * 4, "max_output_tokens": 1}, "max_messages"),
    ("/v1/conversations", {"items": [USER] * 4}, "max_messages"),
    ("/v1/messages", {"model": "", "max_tokens": 61, "messages": [USER]}, "max_answer_tokens"),
    ("/v1/messages", {"model": "", "messages": [USER] * 4, **BRIEF}, "max_messages"),
    ("/v1/messages", {"model": "", "messages": [USER], "stop_sequences": ["a"] * 3, **BRIEF}, "max_stop_strings"),
    (
        "/api/chat",
        {"model": "", "messages": [USER], "options": {"num_predict": 61}, "stream": False},
        "max_answer_tokens",
    ),
    ("/api/chat", {"model": "", "messages": [USER] * 4, "options": {"num_predict": 1}}, "max_messages"),
    ("/api/generate", {"model": "", "prompt": "a" * 101, "options": {"num_predict": 1}}, "max_text_bytes"),
    ("/v1/rerank", {"query": "a", "documents": ["a"] * 4}, "max_inputs"),
    ("/v1/rerank", {"query": "a" * 40, "documents": ["a" * 20] * 3}, "max_prompt_tokens"),
    ("/api/oai/completions", {"prompt": ["a" * 60] * 2, **BRIEF}, "max_text_bytes"),
    ("/api/oai/chooses", {"choices": ["a"] * 4}, "max_choices"),
]


@pytest.mark.parametrize(("path", "body", "limit"), OTHER_WORDS)
async def test_limits_hold_in_the_words_of_other_systems(serve: Serve, path: str, body: Body, limit: str) -> None:
    engine = FakeEngine()
    response = await (await serve(engine, ServerSettings(limits=SMALL))).post(path, json=body)
    text = await response.text()
    assert response.status in (400, 422), text
    assert f"expected at most {getattr(SMALL, limit)} {BOUNDS[limit].unit} ({limit})" in text
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": [USER], "max_completion_tokens": 61}, "max_completion_tokens"),
        ("/v1/chat/completions", {"messages": [USER], "max_completion_tokens": "a"}, "max_completion_tokens"),
        ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 61}}, "max_new_tokens"),
        ("/completion", {"prompt": "a", "n_predict": 61}, "n_predict"),
        ("/completion", {"prompt": "a", "n_predict": 10, "n_probs": 5}, "n_probs"),
        ("/completion", {"prompt": "a", "n_predict": 61, "max_tokens": 61}, "max_tokens"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 61}, "max_output_tokens"),
        ("/v1/messages", {"messages": [USER], "stop_sequences": ["a"] * 3, **BRIEF}, "stop_sequences"),
    ],
)
async def test_an_error_names_the_field_as_the_client_does(serve: Serve, path: str, body: Body, field: str) -> None:
    response = await (await serve(FakeEngine(), ServerSettings(limits=SMALL))).post(path, json=body)
    answer = await response.json()
    message = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
    assert message.startswith(f"{field}: "), message


async def test_what_is_not_said_is_within_the_limits(serve: Serve) -> None:
    """The default texts of `dry_sequence_breakers` are more than this server takes."""
    client = await serve(FakeEngine(), ServerSettings(limits=SMALL))
    body = {"model": "", "messages": [USER], "options": {"num_predict": 1}, "stream": False}
    assert (await client.post("/api/chat", json=body)).status == 200


def test_a_list_that_would_make_very_many_requests_is_refused_by_its_body_alone() -> None:
    body = json.dumps({"prompt": ["a"] * 1000, "n": 128, "max_tokens": 1}).encode()
    assert len(body) < 6000
    with pytest.raises(InvalidRequestError, match=r"prompt: 128000 is not allowed; expected at most 2048 answers"):
        CompletionRequest.parse(body)


async def test_advancing_a_state_is_bounded(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=replace(SMALL, max_text_bytes=200)))
    assert (await client.post("/v1/states", json={"name": "s", "prompt": "a"})).status == 200
    path = "/v1/states/s/advance"
    error = await error_of(await client.post(path, json={"input": "a" * 121}), 400)
    assert "max_prompt_tokens" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        {**TEXT, "n": 6, "max_tokens": 10},
        {**TEXT, "max_tokens": 2**31 - 1, "stream": True},  # a streamed text is not kept
        {**TEXT, "prompt": "a" * 100},
    ],
)
async def test_what_is_within_the_limits_runs(serve: Serve, body: Body) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=SMALL))
    response = await client.post(COMPLETIONS, json=body)
    assert response.status == 200, await response.text()
    await response.read()


async def test_props_list_the_limits(serve: Serve) -> None:
    connections = ConnectionSettings(max_per_client=5, idle_seconds=60.5)
    client = await serve(FakeEngine(), ServerSettings(limits=SMALL, connections=connections))
    body = await (await client.get("/props")).json()
    check_shape(Props, body)
    assert body["limits"] == asdict(SMALL)
    assert body["connections"] == asdict(connections)
    assert body["total_slots"] == 2
    assert body["model_path"] == "fake"
    assert body["default_generation_settings"]["top_k"] == 128


MANY = 100_000
INVALID: list[tuple[type[RequestBody], Body, str]] = [
    (ChatRequest, {"messages": [{"role": "king"}] * MANY}, "messages.0.role"),
    (ChatRequest, {**HI, "modalities": [1] * MANY}, "modalities"),
    (CompletionRequest, {**TEXT, "marks": ["x"] * MANY}, "marks.0"),
    (ChoicesRequest, {"choices": [0] * MANY}, "choices.0"),
    (EmbeddingsRequest, {"input": [0.5] * MANY}, "input"),
    (DetokenizeRequest, {"tokens": ["x"] * MANY}, "tokens.0"),
    (ForkStateRequest, {"names": [1] * MANY}, "names.0"),
]


@pytest.mark.parametrize(("kind", "body", "field"), INVALID)
def test_only_the_first_error_of_a_list_is_looked_for(kind: type[RequestBody], body: Body, field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        kind.parse(json.dumps(body).encode())
    assert refused.value.field == field
    assert len(str(refused.value)) < 400


STRINGS_AND_LISTS: list[object] = [["1" * 1_000_000, *["2"] * 4000], [[1], [2]], [None], [True], [10**309], [[]] * 9]


@pytest.mark.parametrize("data", STRINGS_AND_LISTS)
def test_the_numbers_of_a_state_are_numbers(data: object) -> None:
    body = {**TEXT, "state": {"data": data, "shape": [1, 1, 1, 1]}}
    with pytest.raises(InvalidRequestError, match="a flat list of numbers"):
        CompletionRequest.parse(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("state", "field"), [({"path": "a/" + "b" * 256}, "state.path"), ({"data": [1], "shape": [1] * 5}, "state")]
)
def test_what_no_state_has_is_refused(state: Body, field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        CompletionRequest.parse(json.dumps({**TEXT, "state": state}).encode())
    assert refused.value.field == field


KINDS: list[type[RequestBody]] = [
    ChatRequest,
    CompletionRequest,
    ChoicesRequest,
    EmbeddingsRequest,
    TokenizeRequest,
    DetokenizeRequest,
    CreateStateRequest,
    ForkStateRequest,
    AdvanceStateRequest,
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_list_of_a_body_stops_at_its_first_error(kind: type[RequestBody]) -> None:
    for schema in _parts(kind.__pydantic_core_schema__):
        if schema.get("type") == "list" and "items_schema" in schema:
            assert schema.get("items_schema") == {"type": "any"} or schema.get("fail_fast"), schema


def _parts(schema: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Return all objects of a schema that take part in validation."""
    if isinstance(schema, dict):
        yield schema
        inner = [part for name, part in schema.items() if name != "serialization"]
    else:
        inner = list(schema) if isinstance(schema, list | tuple) else []
    for part in inner:
        yield from _parts(part)
