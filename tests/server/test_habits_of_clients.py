"""What programs send that were made for other servers: their paths, names and fields, as they come without settings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from huggingface_hub import InferenceClient

from rnn_engine.chat_template import WorldTemplate
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve, client_over, error_of

HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}
MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
FUNCTION = {"type": "object", "properties": {}}
REMOTE_TOOLS: list[tuple[str, Body, Body, str]] = [
    (CHAT, {"type": "function", "function": {"name": "f"}}, {"type": "web_search_preview"}, "web_search_preview"),
    (CHAT, {"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "g"}}, "custom"),
    ("/v1/responses", {"type": "function", "name": "f"}, {"type": "web_search", "filters": {}}, "web_search"),
    ("/v1/responses", {"type": "function", "name": "f"}, {"type": "namespace", "name": "n", "tools": []}, "namespace"),
    (MESSAGES, {"name": "f", "input_schema": FUNCTION}, {"type": "bash_20250124", "name": "bash"}, "bash_20250124"),
    ("/api/chat", {"type": "function", "function": {"name": "f"}}, {"type": "web_search"}, "web_search"),
]


def prompt_of(engine: FakeEngine) -> str:
    return bytes(token - 1 for token in engine.requests[0].prompt).decode()


@pytest.mark.parametrize(("path", "own", "remote", "kind"), REMOTE_TOOLS)
async def test_tools_that_a_providers_server_runs_are_left_out_and_named(
    serve: Serve, path: str, own: Body, remote: Body, kind: str
) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    body = {**HI, "max_tokens": 5, "input": "Hi", "tools": [remote, own]}
    for name in ("input",) if path != "/v1/responses" else ("messages",):
        del body[name]
    if path == "/api/chat":
        del body["max_tokens"]
    response = await client.post(path, json=body)
    assert (response.status, response.headers["X-Left-Out"]) == (200, f"tools.{kind}"), await response.text()
    assert '{"name": "f"' in prompt_of(engine) or "f()" in prompt_of(engine)

    strict = await serve(FakeEngine(), ServerSettings(strict=True))
    assert (await strict.post(path, json=body)).status == 400


THINKING: list[tuple[str, Body, bool | None]] = [
    (CHAT, {}, None),
    (CHAT, {"enable_thinking": True}, True),
    (CHAT, {"enable_thinking": False}, False),
    (CHAT, {"thinking": {"type": "enabled"}}, True),
    (CHAT, {"thinking": {"type": "disabled"}}, False),
    (CHAT, {"reasoning": {"enabled": True, "exclude": False}}, True),
    (CHAT, {"reasoning": {"effort": "low"}}, True),
    (CHAT, {"reasoning_effort": "none"}, False),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
    (MESSAGES, {"thinking": {"type": "adaptive"}}, True),
    (MESSAGES, {"thinking": {"type": "adaptive", "display": "updates"}}, True),
    (MESSAGES, {"thinking": {"type": "disabled"}}, False),
    ("/api/chat", {"think": True, "stream": False}, True),
    ("/api/chat", {"think": False, "stream": False}, False),
]


@pytest.mark.parametrize(("path", "fields", "wanted"), THINKING)
async def test_thoughts_are_asked_for_only_if_the_chat_template_has_them(
    serve: Serve, path: str, fields: Body, wanted: bool | None
) -> None:
    with_thoughts, without = FakeEngine(chat_template=WorldTemplate(thinks=True)), FakeEngine()
    body = {**HI, **fields, **({"max_tokens": 5} if path == MESSAGES else {})}
    for engine in (with_thoughts, without):
        response = await (await serve(engine)).post(path, json=body)
        assert response.status == 200, await response.text()
    assert prompt_of(with_thoughts).endswith("Assistant: <think") == (wanted is True)
    assert prompt_of(without).endswith("Assistant:")


@pytest.mark.parametrize("fields", [{"thinking": True}, {"thinking": {"type": "often"}}, {"reasoning": "low"}])
async def test_wishes_for_thoughts_in_no_known_form_are_refused(serve: Serve, fields: Body) -> None:
    error = await error_of(await (await serve(FakeEngine())).post(CHAT, json={**HI, **fields}), 400)
    assert error["param"] in fields


FIELDS: list[tuple[str, Body, str | None]] = [
    (CHAT, {**HI, "safe_prompt": True, "random_seed": 7}, "safe_prompt"),
    (CHAT, {**HI, "session_id": "a", "client_metadata": {"a": "b"}}, "client_metadata, session_id"),
    (CHAT, {**HI, "documents": [], "prompt_logprobs": 0}, None),
    (MESSAGES, {**HI, "max_tokens": 5, "mcp_servers": []}, None),
    (MESSAGES, {**HI, "max_tokens": 5, "context_management": {"edits": []}}, "context_management"),
    ("/api/chat", {**HI, "stream": False, "temperature": 0}, "temperature"),
]


@pytest.mark.parametrize(("path", "body", "left_out"), FIELDS)
async def test_fields_of_other_systems_are_taken_or_left_out(
    serve: Serve, path: str, body: Body, left_out: str | None
) -> None:
    engine = FakeEngine()
    response = await (await serve(engine)).post(path, json=body)
    assert (response.status, response.headers.get("X-Left-Out")) == (200, left_out), await response.text()
    if "random_seed" in body:
        assert engine.requests[0].sampling.seed == 7


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        {"response_format": {"type": "json", "value": SCHEMA}},
        {"regex": "[0-9]+"},
        {"ebnf": 'root ::= "a"'},
    ],
)
async def test_forms_of_an_answer_are_taken_under_the_names_of_other_systems(serve: Serve, fields: Body) -> None:
    engine = FakeEngine()
    response = await (await serve(engine)).post(CHAT, json={**HI, **fields})
    assert response.status == 200, await response.text()
    assert engine.requests[0].grammar is not None


async def test_claude_codes_header_for_anthropics_servers_does_not_change_the_prompt(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    texts = ["You are an agent.", "Be short."]
    for version in ("fa0", "84c"):
        header = f"x-anthropic-billing-header: cc_version=2.1.197.{version}; cc_entrypoint=cli;"
        system = [{"type": "text", "text": text} for text in (header, *texts)]
        await client.post(MESSAGES, json={**HI, "system": system, "max_tokens": 5})
    first, second = engine.requests
    assert first.prompt == second.prompt
    assert prompt_of(engine).startswith("System: You are an agent.\nBe short.\n\n")


async def test_paths_may_begin_as_on_groqs_servers(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings())
    assert (await client.post("/openai/v1/chat/completions", json=HI)).status == 200
    assert (await client.get("/openai/v1/models")).status == 200
    assert (await client.get("/openai/v1/nothing")).status == 404


async def test_hugging_faces_client_needs_nothing_but_the_address() -> None:
    engine = FakeEngine(reply=lambda _: " Hello!")
    async with client_over(engine) as client:
        hub = InferenceClient(str(client.make_url("/")).rstrip("/"))
        answers = await _in_thread(hub)
    assert answers == ["Hello!", " Hello!", " Hello!"]


async def _in_thread(hub: InferenceClient) -> list[Any]:
    def ask() -> list[Any]:
        chat = hub.chat_completion([{"role": "user", "content": "Hi"}], max_tokens=20)
        text = hub.text_generation("Hi", max_new_tokens=20)
        stream = "".join(hub.text_generation("Hi", max_new_tokens=20, stream=True))
        return [chat.choices[0].message.content, text, stream]

    return await asyncio.to_thread(ask)


async def test_alternatives_of_a_chats_first_token_are_cut_as_the_token_itself(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: " Hello"))
    body = {**HI, "logprobs": True, "top_logprobs": 3}
    answer = await (await client.post(CHAT, json=body)).json()
    for entry in answer["choices"][0]["logprobs"]["content"]:
        own = [top for top in entry["top_logprobs"] if top["logprob"] == entry["logprob"]]
        assert entry["token"] in [top["token"] for top in own] or not own


SILLYTAVERN: Body = {
    "temperature": 1,
    "top_p": 1,
    "typical_p": 0.9,
    "typical": 0.9,
    "min_p": 0,
    "repetition_penalty": 1.1,
    "rep_pen": 1.1,
    "repeat_penalty": 1.1,
    "rep_pen_range": 100,
    "repetition_penalty_range": 100,
    "repeat_last_n": 100,
    "rep_pen_slope": 1,
    "top_k": 0,
    "skew": 0,
    "min_tokens": 0,
    "add_bos_token": True,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_multiplier": 0,
    "dry_sequence_breakers": '["\\n", ":"]',
    "dry_penalty_last_n": 0,
    "stopping_strings": ["\nUser:"],
    "stop": ["\nUser:"],
    "truncation_length": 4096,
    "ban_eos_token": False,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 0,
    "mirostat": 0,
    "mirostat_tau": 5,
    "custom_token_bans": "",
    "banned_strings": [],
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "nsigma": 0,
    "top_n_sigma": 0,
    "min_keep": 0,
    "adaptive_target": -0.01,
    "adaptive_decay": 0.9,
    "guidance_scale": 1,
    "negative_prompt": "",
    "n_predict": 20,
    "num_predict": 20,
    "max_new_tokens": 20,
    "num_ctx": 4096,
    "trim_stop": True,
    "api_type": "koboldcpp",
}


async def test_what_sillytavern_sends_as_a_text_completion(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    response = await client.post("/v1/completions", json={**SILLYTAVERN, "prompt": "a", "max_tokens": 20})
    assert response.status == 200, await response.text()
    sampling = engine.requests[0].sampling
    assert (sampling.repeat_penalty, sampling.repeat_last_n, sampling.typical_p) == (1.1, 100, 0.9)
    assert list(sampling.dry_sequence_breakers) == ["\n", ":"]
