"""Bodies that are refused: the message names the field, shows its value and says what is allowed."""

from __future__ import annotations

import json

import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.apis.openai.fine_tuning import FineTuningRequest
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve, error_of

HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT: Body = {"prompt": "a"}

BAD_COMPLETIONS: list[tuple[Body, str, str]] = [
    ({}, "prompt", "required"),
    ({"prompt": None}, "prompt", "a string, a list of token ids"),
    ({"prompt": 3}, "prompt", "3 is not allowed"),
    ({"prompt": []}, "prompt", "a list of token ids"),
    ({"prompt": [[]]}, "prompt", "at least one token"),
    ({"prompt": ["a", 1.5]}, "prompt", "['a', 1.5]"),
    ({"prompt": [True]}, "prompt", "[True]"),
    ({"prompt": [1, 257]}, "prompt token 1", "257 is not allowed; expected a token id from 0 to 256"),
    ({"prompt": [-1]}, "prompt token 0", "-1"),
    ({**TEXT, "max_tokens": -2}, "max_tokens", "from 0"),
    ({**TEXT, "max_tokens": 3, "min_tokens": 4}, "min_tokens", "from 0 to 3"),
    ({**TEXT, "stop_token_ids": [999]}, "stop_token_ids token 1", "999"),
    ({**TEXT, "top_a": 0.5}, "top_a", "null or 0, since this server does not have it"),
    ({**TEXT, "do_sample": 1}, "do_sample", "null or True"),
    ({**TEXT, "max_tokens": "5"}, "max_tokens", "'5' is not allowed; expected a whole number"),
    ({**TEXT, "max_tokens": 1.5}, "max_tokens", "1.5"),
    ({**TEXT, "temperature": -0.1}, "temperature", "from 0 to 100"),
    ({**TEXT, "temperature": "hot"}, "temperature", "'hot' is not allowed; expected a number"),
    ({**TEXT, "top_p": 1.1}, "top_p", "from 0 to 1"),
    ({**TEXT, "top_k": -2}, "top_k", "from -1 to"),
    ({**TEXT, "penalty_decay": 2}, "penalty_decay", "from 0 to 1"),
    ({**TEXT, "presence_penalty": 1e9}, "presence_penalty", "1000000000.0"),
    ({**TEXT, "logit_bias": {"": 1}}, "logit_bias", "a text that is not empty"),
    ({**TEXT, "logit_bias": {"1": "x"}}, "logit_bias", "a list of pairs"),
    ({**TEXT, "logit_bias": {"1": 10**309}}, "logit_bias", "fit a 64-bit float"),
    ({**TEXT, "logit_bias": {"1" * 5000: 1}}, "logit_bias", "at most 20 digits"),
    ({**TEXT, "logit_bias": {"1": 1001}}, "logit_bias value", "from -1000 to 1000"),
    ({**TEXT, "logit_bias": [1]}, "logit_bias", "a list of pairs"),
    ({**TEXT, "logit_bias": [[1, True]]}, "logit_bias", "a list of pairs"),
    ({**TEXT, "samplers": ["top_k", "mystery"]}, "samplers", "'mystery' is not allowed; expected a list of penalties"),
    ({**TEXT, "samplers": "kz"}, "samplers", "or a string of their letters edskypmxt"),
    ({**TEXT, "sampler": {"type": "Nucleus", "top_k": 0.5}}, "sampler.top_k", "a whole number"),
    ({**TEXT, "sampler": {"type": "Greedy"}}, "sampler.type", "Nucleus, Typical or Mirostat"),
    ({**TEXT, "sampler": {"type": "Mirostat", "top_p": 0.5}}, "sampler.top_p", "one of the fields tau, rate"),
    ({**TEXT, "sampler": {"type": "Typical", "tau": 101}}, "sampler.tau", "from 0 to 100"),
    ({**TEXT, "sampler": {"type": "Typical"}, "min_p": 0.1}, "sampler", "can't be used together with samplers"),
    ({**TEXT, "bad_words": [""]}, "bad_words", "words that are not empty"),
    ({**TEXT, "logit_bias": {"999": 1}}, "logit_bias token id", "999"),
    ({**TEXT, "logit_bias": {"1": 1}, "bias": {"2": 1}}, "bias", "the same value as logit_bias"),
    ({**TEXT, "seed": -2}, "seed", "-2"),
    ({**TEXT, "seed": 2**64}, "seed", "from 0 to 18446744073709551615"),
    ({**TEXT, "seed": True}, "seed", "True"),
    ({**TEXT, "stop": ""}, "stop", "none of them empty"),
    ({**TEXT, "stop": ["a", 1]}, "stop", "['a', 1]"),
    ({**TEXT, "stop": ["a"] * 65}, "stop", "at most 64 strings (max_stop_strings)"),
    ({**TEXT, "n": 0}, "n", "at least 1"),
    ({**TEXT, "n": 129}, "n", "at most 128"),
    ({**TEXT, "stream": "yes"}, "stream", "true or false"),
    ({**TEXT, "stream_options": {"include_usage": True}}, "stream_options", "unless stream is true"),
    ({**TEXT, "stream": True, "stream_options": 1}, "stream_options", "a JSON object"),
    ({**TEXT, "logprobs": 21}, "logprobs", "from 0 to 20"),
    ({**TEXT, "logprobs": True}, "logprobs", "a whole number"),
    ({**TEXT, "echo": 1}, "echo", "true or false"),
    ({**TEXT, "suffix": "end"}, "suffix", "null or ''"),
    ({**TEXT, "best_of": 0}, "best_of", "at least 1"),
    ({**TEXT, "best_of": 129}, "best_of", "at most 128"),
    ({**TEXT, "best_of": 2, "n": 3}, "best_of", "at least n, which is 3"),
    ({**TEXT, "best_of": 2, "stream": True}, "best_of", "null or n (1) with stream"),
    ({**TEXT, "best_of": 2, "save_as": "name"}, "save_as", "one answer"),
    ({**TEXT, "max_token": 5}, "max_token", "unknown field 'max_token'; did you mean 'max_tokens'?"),
]

BAD_CHATS: list[tuple[Body, str, str]] = [
    ({}, "messages", "required"),
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": "Hi"}, "messages", "a list"),
    ({"messages": ["Hi"]}, "messages.0", "a JSON object"),
    ({"messages": [{"content": "Hi"}]}, "messages.0.role", "required"),
    ({"messages": [{"role": "king", "content": "Hi"}]}, "messages.0.role", "system, developer, user"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "5 is not allowed"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content", "text parts"),
    ({**HI, "top_logprobs": 2}, "top_logprobs", "unless logprobs is true"),
    ({**HI, "logprobs": 2}, "logprobs", "true or false"),
    ({**HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({**HI, "max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "max_tokens"),
    ({**HI, "response_format": {"type": "xml"}}, "response_format", '{"type": "json_object"}'),
    ({**HI, "response_format": "json_object"}, "response_format", '{"type": "json_object"}'),
    (
        {**HI, "response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        "response_format",
        "a JSON schema",
    ),
    (
        {**HI, "response_format": {"type": "json_schema", "json_schema": {"nam": "x"}}},
        "response_format.json_schema.nam",
        "name",
    ),
    (
        {**HI, "response_format": {"type": "json_object"}, "guided_regex": "a"},
        "guided_regex",
        "response_format is given",
    ),
    ({**HI, "grammar": "root ::= [a]", "bnf_schema": "start ::= 'a';"}, "bnf_schema", "null, since grammar is given"),
    (
        {**HI, "structured_outputs": {"json": {}, "regex": "a"}},
        "structured_outputs",
        "only one of the fields json, regex",
    ),
    ({**HI, "structured_outputs": {"xml": {}}}, "structured_outputs.xml", "json, json_object, regex"),
    ({**HI, "guided_choice": []}, "guided_choice", "not empty"),
    ({**HI, "guided_choice": [1]}, "guided_choice", "list of strings"),
    ({**HI, "guided_regex": 5}, "guided_regex", "as a string"),
    ({**HI, "json_schema": [1]}, "json_schema", "a JSON schema"),
    ({**HI, "grammar": {"type": "json"}}, "grammar", '{"type": "regex", "value"'),
    ({**HI, "guided_regex": "a" * 300_000}, "guided_regex", "at most 262144 bytes (max_grammar_bytes)"),
    ({**HI, "modalities": ["audio"]}, "modalities", "text only"),
    ({**HI, "names": {"king": "Bob"}}, "names", "'king'"),
    ({**HI, "names": {"user": 1}}, "names", "roles and names"),
    ({**HI, "template": {"record": "{role}"}}, "template.record", "{content}"),
    ({**HI, "template": {"records": "x"}}, "template.records", "did you mean 'record'?"),
]


async def test_a_strict_server_refuses_unknown_fields(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(strict=True))
    error = await error_of(await client.post("/v1/completions", json={**TEXT, "zebra": 5}), 400)
    assert error["message"] == "unknown field 'zebra'; the page /docs of this server lists the known fields"


MISSPELLED = [
    ("max_token", "max_tokens"),
    ("maxTokens", "max_tokens"),
    ("stop-token-ids", "stop_token_ids"),
    ("temprature", "temperature"),
    ("stops", "stop"),
    ("presence_penality", "presence_penalty"),
]


@pytest.mark.parametrize(("name", "field"), MISSPELLED)
async def test_what_looks_misspelled_is_refused_with_the_field_that_was_meant(
    serve: Serve, name: str, field: str
) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/v1/completions", json={**TEXT, name: 1}), 400)
    assert error["message"] == f"unknown field {name!r}; did you mean {field!r}?"


@pytest.mark.parametrize(("body", "param", "words"), BAD_COMPLETIONS)
async def test_completions_refuse(serve: Serve, body: Body, param: str, words: str) -> None:
    await check_refusal(serve, "/v1/completions", body, param, words)


@pytest.mark.parametrize(("body", "param", "words"), BAD_CHATS)
async def test_chats_refuse(serve: Serve, body: Body, param: str, words: str) -> None:
    await check_refusal(serve, "/v1/chat/completions", body, param, words)


async def check_refusal(serve: Serve, path: str, body: Body, param: str, words: str) -> None:
    engine = FakeEngine()
    error = await error_of(await (await serve(engine)).post(path, json=body), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"].startswith((f"{param}: ", f"unknown field {param!r}; "))
    assert words in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "a",}',
        b'{"prompt": NaN}',
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b"[" * 9999,
    ],
)
async def test_what_is_no_json_is_refused(serve: Serve, data: bytes) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/v1/completions", data=data), 400)
    assert error["param"] == "body"
    assert "JSON" in error["message"]


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b'{"prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"prompt": "a", "seen": [{"x": 1}, {"y": -1e+400}]}', "seen.1.y"),
        (b'{"prompt": "a", "far": 9%s.5}' % (b"0" * 308), "far"),
        (b'{"prompt": "%s", "far": 9%s.5}' % (b"a" * ((1 << 13) - 100), b"0" * 309), "far"),
        (b'{"prompt": "%s", "far": 1e999}' % (b"a" * ((1 << 13) - 24)), "far"),
        (b"1e309", "body"),
    ],
    ids=range(6),
)
async def test_a_number_that_no_float_holds_is_refused_in_any_field(serve: Serve, data: bytes, param: str) -> None:
    engine = FakeEngine()
    error = await error_of(await (await serve(engine)).post("/v1/completions", data=data), 400)
    assert (error["param"], engine.requests) == (param, [])
    assert "expected a number that fits a 64-bit float" in error["message"]


@pytest.mark.parametrize("data", [b"[]", b"null", b'"prompt"', b"3"])
async def test_json_that_is_no_object_is_refused(serve: Serve, data: bytes) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/v1/chat/completions", data=data), 400)
    assert "a JSON object" in error["message"]


@pytest.mark.parametrize(
    ("value", "allowed"),
    [(0, "'auto' or at least 1"), (10**9, "'auto' or at most 1000"), ("all", "'auto' or a whole number")],
)
def test_a_field_of_several_types_is_refused_with_all_that_it_may_be(value: object, allowed: str) -> None:
    body = {"model": "m", "training_file": "f", "hyperparameters": {"n_epochs": value}}
    with pytest.raises(InvalidRequestError) as refused:
        FineTuningRequest.parse(json.dumps(body).encode())
    assert (refused.value.field, refused.value.allowed) == ("hyperparameters.n_epochs", allowed)


async def test_one_bad_prompt_refuses_the_list_before_anything_runs(serve: Serve) -> None:
    engine = FakeEngine()
    await error_of(await (await serve(engine)).post("/v1/completions", json={"prompt": [[1], [999]]}), 400)
    assert engine.requests == []


async def test_bad_request_for_a_stream_is_no_stream(serve: Serve) -> None:
    body = {"prompt": [999], "stream": True}
    await error_of(await (await serve(FakeEngine())).post("/v1/completions", json=body), 400)


async def test_long_values_are_shortened(serve: Serve) -> None:
    body = {"prompt": "a", "stop": ["x" * 10_000, 1]}
    error = await error_of(await (await serve(FakeEngine())).post("/v1/completions", json=body), 400)
    assert len(error["message"]) < 300


HABITS: Body = {
    "add_special_tokens": False,
    "best_of": 1,
    "cache_prompt": True,
    "chat_template_kwargs": {},
    "detokenize": True,
    "documents": None,
    "echo": False,
    "id_slot": -1,
    "include_reasoning": True,
    "max_completion_tokens": 5,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "n": 1,
    "n_keep": 0,
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "prompt": None,
    "request_id": "x",
    "return_progress": False,
    "separate_reasoning": True,
    "service_tier": "auto",
    "store": True,
    "stream_options": None,
    "timings_per_token": True,
    "top_logprobs": 0,
    "user": "ann",
    "web_search_options": None,
}


@pytest.mark.parametrize("name", HABITS)
async def test_what_clients_send_by_habit_is_accepted(serve: Serve, name: str) -> None:
    response = await (await serve(FakeEngine())).post("/v1/chat/completions", json={**HI, name: HABITS[name]})
    assert response.status == 200, await response.text()


async def test_an_empty_suffix_is_none(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert (await client.post("/v1/completions", json={"prompt": "a", "suffix": ""})).status == 200


async def test_a_name_that_is_taken_is_told_as_save_as(serve: Serve) -> None:
    client = await serve(FakeEngine())
    body = {**HI, "save_as": "a"}
    assert (await client.post("/v1/chat/completions", json=body)).status == 200
    error = await error_of(await client.post("/v1/chat/completions", json=body), 400)
    assert error["param"] == "save_as"
    assert "a name that is free" in error["message"]


UNKNOWN: list[tuple[str, Body]] = [
    ("/v1/completions", TEXT),
    ("/v1/chat/completions", HI),
    ("/v1/embeddings", {"input": "a"}),
    ("/v1/messages", {**HI, "max_tokens": 3}),
    ("/api/oai/completions", TEXT),
    ("/generate", {"inputs": "a", "parameters": {"pony": 3}}),
]


@pytest.mark.parametrize(("path", "body"), UNKNOWN)
async def test_unknown_fields_are_left_out_and_named(serve: Serve, path: str, body: Body) -> None:
    client = await serve(FakeEngine())
    response = await client.post(path, json={**body, "zebra": 5, "käse\r\nX-A: b": [1], "lion": None})
    assert response.status == 200, await response.text()
    names = ["k%C3%A4se%0D%0AX-A%3A%20b", *(["pony"] if path == "/generate" else []), "zebra"]
    assert response.headers["X-Left-Out"] == ", ".join(names)
    assert "X-A" not in response.headers


async def test_unknown_fields_of_parts_are_left_out_too(serve: Serve) -> None:
    client = await serve(FakeEngine())
    message = {"role": "user", "content": "Hi", "mood": "good"}
    response = await client.post("/v1/chat/completions", json={"messages": [message], "stream": True})
    assert (response.status, response.headers["X-Left-Out"]) == (200, "mood")


async def test_a_body_has_a_bounded_number_of_unknown_fields(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for count, status in ((100, 200), (101, 400)):
        body = {**TEXT, **{f"zebra {number} zebra": 1 for number in range(count)}}
        assert (await client.post("/v1/completions", json=body)).status == status
    error = await error_of(await client.post("/v1/completions", json=body), 400)
    assert error["message"] == "unknown field 'zebra 100 zebra'; a body may have at most 100 of them"


async def test_unknown_fields_are_logged_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    client = await serve(FakeEngine())
    with caplog.at_level("INFO", "rnn_engine_server.core.bodies"):
        for _ in range(3):
            await client.post("/v1/completions", json={**TEXT, "zebra": 5})
        await client.post("/v1/completions", json={**TEXT, "zebra": 5, "lion": 1})
    words = "which this server does not have; not logged again"
    assert [record.getMessage() for record in caplog.records] == [
        f"/v1/completions: left out 'zebra', {words}",
        f"/v1/completions: left out 'lion', {words}",
    ]


async def test_what_is_kept_is_never_made_with_a_field_left_out(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for path, body in (
        ("/v1/states", {"name": "a", "prompt": "b", "lease": 5}),
        ("/v1/completions", {**TEXT, "save_as": {"name": "a", "lease": 5}}),
    ):
        error = await error_of(await client.post(path, json=body), 400)
        assert "unknown field" in error["message"]


async def test_chats_that_ask_to_be_kept_are_answered_and_the_wish_is_named(serve: Serve) -> None:
    client = await serve(FakeEngine())
    response = await client.post("/v1/chat/completions", json={**HI, "store": True})
    assert (response.status, response.headers["X-Left-Out"]) == (200, "store")
    response = await client.post("/v1/chat/completions", json={**HI, "store": False})
    assert (response.status, response.headers.get("X-Left-Out")) == (200, None)


async def test_what_would_change_the_answer_is_refused_all_the_same(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for fields in ({"top_a": 0.5}, {"n": 0}, {"suffix": "end"}, {"guidance_scale": 2}):
        error = await error_of(await client.post("/v1/completions", json={**TEXT, **fields}), 400)
        assert error["param"] in fields


async def test_nothing_is_said_where_nothing_was_left_out(serve: Serve) -> None:
    for settings in (ServerSettings(), ServerSettings(strict=True)):
        client = await serve(FakeEngine(), settings)
        response = await client.post("/v1/completions", json={**TEXT, "user": "ann", "lion": None})
        assert "X-Left-Out" not in response.headers
