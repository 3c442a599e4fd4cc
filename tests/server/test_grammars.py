"""Structured output: the fields of every dialect, and answers that follow them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from rnn_engine.engine import Engine
from rnn_engine.grammar import Grammar, choice_grammar, json_grammar
from rnn_engine.loading.parts import assemble
from rnn_engine_server.apis.openai.schemas import ChatCompletion, ChatCompletionChunk, Completion
from rnn_engine_server.core import handlers
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import FakeEngine
from tests.support.fake_runner import FakeRunner, table_logits
from tests.support.http import Body, Client, Serve, Through, client_over, error_of, post, post_stream

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "maxLength": 6},
        "scores": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["answer", "scores"],
    "additionalProperties": False,
}
GBNF = 'root ::= "a" [0-9]'
LARK = 'start: "a" /[0-9]/'
KBNF = 'start ::= #"a[0-9]";'
OPENAI = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}

FORMS: list[tuple[Body, Grammar | None]] = [
    ({}, None),
    ({"response_format": None, "guided_json": None, "grammar": None, "bnf_schema": None}, None),
    ({"response_format": {"type": "text"}, "grammar": GBNF}, Grammar("gbnf", GBNF)),
    ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
    ({"response_format": OPENAI}, json_grammar(SCHEMA)),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "it"}}}, Grammar("json_object")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}}},
        json_grammar(SCHEMA, strict=False),
    ),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, json_grammar(SCHEMA)),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, json_grammar(SCHEMA)),
    ({"response_format": {"type": "json", "value": SCHEMA}}, json_grammar(SCHEMA)),
    ({"response_format": {"type": "regex", "value": "a[0-9]"}}, Grammar("regex", "a[0-9]")),
    ({"guided_json": SCHEMA}, json_grammar(SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, json_grammar(SCHEMA)),
    ({"guided_regex": "a[0-9]"}, Grammar("regex", "a[0-9]")),
    ({"guided_choice": ["yes", "no"]}, choice_grammar(["yes", "no"])),
    ({"guided_grammar": LARK}, Grammar("lark", LARK)),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, json_grammar(SCHEMA)),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, choice_grammar(["yes", "no"])),
    ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
    ({"structured_outputs": {"regex": "a[0-9]"}}, Grammar("regex", "a[0-9]")),
    ({"structured_outputs": {"grammar": GBNF}}, Grammar("gbnf", GBNF)),
    ({"grammar": GBNF}, Grammar("gbnf", GBNF)),
    ({"grammar": LARK}, Grammar("lark", LARK)),
    ({"grammar": {"type": "json", "value": SCHEMA}}, json_grammar(SCHEMA)),
    ({"grammar": {"type": "regex", "value": "a[0-9]"}}, Grammar("regex", "a[0-9]")),
    ({"json_schema": SCHEMA}, json_grammar(SCHEMA)),
    ({"bnf_schema": KBNF}, Grammar("kbnf", KBNF)),
]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(("fields", "grammar"), FORMS, ids=range(len(FORMS)))
async def test_every_dialect_says_what_the_answer_may_be(serve: Serve, fields: Body, grammar: Grammar | None) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await post(client, CHAT, ChatCompletion, {**HI, **fields})
    await post(client, COMPLETIONS, Completion, {"prompt": "Hi", **fields})
    assert [request.grammar for request in engine.requests] == [grammar, grammar]


async def test_the_beginning_of_a_grammars_text_may_stand_in_the_prompt(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    body: Body = {"prompt": [5, "Hi", 6], "grammar": GBNF, "grammar_prefix_tokens": 2}
    await post(client, COMPLETIONS, Completion, body)
    assert engine.requests[0].grammar_prefix == 2
    error = await error_of(await client.post(COMPLETIONS, json={"prompt": "Hi", "grammar_prefix_tokens": 1}), 400)
    assert error["param"] == "grammar_prefix_tokens"


async def test_a_chat_with_a_grammar_ends_with_it_and_not_at_a_blank_line_unless_asked(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    for fields in ({}, {"grammar": GBNF}, {"grammar": GBNF, "stop": ["x"]}):
        await post(client, CHAT, ChatCompletion, {**HI, **fields})
    assert [tuple(request.stop) for request in engine.requests] == [(b"\n\n",), (), (b"x",)]


@pytest.fixture
async def client(through: Through) -> AsyncIterator[Client]:
    """Yield a client of a server over an engine whose model has random logits."""
    runner, tokenizer = FakeRunner(table_logits(257)), ByteTokenizer()
    engine = Engine(assemble(runner, tokenizer, model="fake", device="none", weights="f32"), grammar_seconds=1.0)
    async with client_over(await through(engine)) as client:
        yield client


async def test_answers_follow_the_schema_whole_and_streamed(client: Client) -> None:
    body: Body = {**HI, "response_format": OPENAI, "temperature": 1, "top_p": 1, "top_k": 0, "max_tokens": 200}
    whole = await asyncio.gather(*(post(client, CHAT, ChatCompletion, {**body, "seed": seed}) for seed in range(4)))
    texts = [answer["choices"][0]["message"]["content"] for answer in whole]
    for seed in range(4):
        chunks = await post_stream(client, CHAT, ChatCompletionChunk, {**body, "seed": seed})
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == texts[seed]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    for text in texts:
        Draft202012Validator(SCHEMA).validate(json.loads(text))
    assert len(set(texts)) > 2


URIS: list[Body] = [
    {"$id": "Output Format", "const": "x"},
    {"$id": "{{id}}", "properties": {"a": {"$id": "a b", "const": 1}}, "const": "x"},
    {"$schema": "http://json-schema.org/schema#", "const": "x"},
    {"$schema": "https://json-schema.org/draft-07/schema#", "const": "x"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "#x", "const": "x"},
    {"$defs": {"List<A B>": {"const": "x"}}, "$ref": "#/$defs/List<A B>"},
    {"$defs": {"A[int]": {"const": "x"}}, "$ref": "#/$defs/A%5Bint]"},
    {"$defs": {"100%": {"const": "x"}}, "$ref": "#/$defs/100%"},
    {"$defs": {"a#ü": {"const": "x"}}, "$ref": "#/$defs/a#ü"},
]
"""Schemas with URIs that are wrong or not known, as programs make them. Each allows only "x"."""


@pytest.mark.parametrize("schema", URIS, ids=str)
async def test_a_schema_is_not_refused_for_its_uris(client: Client, schema: Body) -> None:
    body: Body = {**HI, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    answer = await post(client, CHAT, ChatCompletion, body)
    assert answer["choices"][0]["message"]["content"] == '"x"'


WRONG: list[tuple[Body, str, str]] = [
    ({"guided_regex": "(a"}, "guided_regex", "unclosed group"),
    ({"grammar": "root ::= ["}, "grammar", "line 1"),
    ({"bnf_schema": "start = 'a'"}, "bnf_schema", "line 1, column"),
    ({"json_schema": {"$ref": "http://127.0.0.1:9/s"}}, "json_schema", "none is fetched"),
    ({"guided_json": {"items": {"uniqueItems": True}}}, "guided_json", "#/items"),
    ({"guided_json": '{"items":' * 200 + "{}" + "}" * 200}, "guided_json", "recursion limit|too deeply nested"),
    ({"guided_regex": "((a{300}){300}){300}"}, "guided_regex", "1 s are allowed|more than 1 s|can't be followed"),
    ({"grammar": 'root ::= "a" (' + "(" * 9000}, "grammar", "too deeply nested"),
    ({"bnf_schema": "start ::= " + '"a"? ' * 40 + ";"}, "bnf_schema", "s are allowed|takes more than 1 s"),
]


async def test_an_error_of_a_grammar_has_its_line_and_column_where_the_client_wrote_a_text(client: Client) -> None:
    for fields, place in (
        ({"grammar": 'root ::= "a" |\n  b'}, (2, 3)),
        ({"json_schema": '{"type":\n 3 4}'}, (2, 4)),
        ({"json_schema": {"type": "strin"}}, None),
        ({"temperature": -1}, None),
    ):
        error = await error_of(await client.post(COMPLETIONS, json={"prompt": "Hi", **fields}), 400)
        assert (error.get("line"), error.get("column")) == (place or (None, None))


async def test_wrong_grammars_are_a_400_in_bounded_time_and_disturb_nobody(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "HEADERS_SECONDS", 3600.0)  # a stream's status waits for the grammar, however slow
    others = [asyncio.create_task(post(client, COMPLETIONS, Completion, {"prompt": "Hi", "max_tokens": 500}))]
    for number, (fields, param, words) in enumerate(WRONG):
        response = await client.post(CHAT, json={**HI, **fields, "stream": number % 2 == 1})
        error = await error_of(response, 400)
        assert error["param"] == param
        assert any(word in error["message"] for word in words.split("|")), error["message"]
        good = {"prompt": "Hi", "guided_choice": ["yes", "no"]}
        others.append(asyncio.create_task(post(client, COMPLETIONS, Completion, good)))
    for other in await asyncio.gather(*others[1:]):
        assert other["choices"][0]["text"] in ("yes", "no")
    await others[0]


class Step(BaseModel):
    what: Literal["add", "subtract"]
    numbers: list[int]


class Plan(BaseModel):
    title: str
    steps: list[Step]
    note: str | None


async def test_openai_client_parses_answers(client: Client) -> None:
    url = str(client.make_url("/v1"))
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as official:
        messages: Any = [{"role": "user", "content": "Hi"}]
        answer = await official.chat.completions.parse(
            model="fake", messages=messages, response_format=Plan, max_tokens=4000, seed=1, temperature=0.3
        )
        assert isinstance(answer.choices[0].message.parsed, Plan)
        async with official.chat.completions.stream(
            model="fake", messages=messages, response_format=Plan, max_tokens=4000, seed=1, temperature=0.3
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == answer.choices[0].message.parsed
