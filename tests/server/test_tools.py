"""Calls of tools, with the official client: over answers that a test chooses, and of the demo model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Literal
from urllib.parse import unquote

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolParam

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.chat_template.tools import ToolFormats
from rnn_engine.grammar.compiled import fit_grammar
from rnn_engine.interface import EngineLike
from rnn_engine_server.apis.openai.schemas import ChatCompletion
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine
from tests.support.http import PIECES, Body, Load, Serve, Through, client_over, error_of, post
from tests.support.official import openai_client

PATH = "/v1/chat/completions"


def tool(name: str, **properties: str) -> ChatCompletionToolParam:
    kinds: dict[str, object] = {argument: {"type": kind} for argument, kind in properties.items()}
    parameters: dict[str, object] = {"type": "object", "properties": kinds, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("weather", city="string")
TIMER = tool("timer", minutes="integer")
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
ASK: Body = {"messages": QUESTION, "tools": [WEATHER, TIMER]}
CALLS = (
    ' Both.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "timer", "arguments": {"minutes": 5}}\n</tool_call>'
)


async def client_of(engine: EngineLike) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(make_app(engine, ServerSettings())) as client:
        yield client


def called(engine: FakeEngine) -> str:
    """Return the grammar of the last request in Lark."""
    grammar = engine.requests[-1].grammar
    assert grammar is not None
    return fit_grammar(grammar)[0].text


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(reply=lambda _: CALLS)


@pytest.fixture
async def client(through: Through, engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async for client in client_of(await through(engine)):
        yield client


async def test_calls_come_apart_from_content(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="fake", messages=QUESTION, tools=[WEATHER, TIMER])
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Both.")
    assert choice.message.tool_calls is not None
    functions = [call.function for call in choice.message.tool_calls if call.type == "function"]
    assert [(each.name, json.loads(each.arguments)) for each in functions] == [
        ("weather", {"city": "Paris"}),
        ("timer", {"minutes": 5}),
    ]
    ids = {call.id for call in choice.message.tool_calls}
    assert len(ids) == 2
    assert all(each.startswith("call_") for each in ids)


@PIECES
async def test_calls_are_streamed_piece_by_piece(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="fake", messages=QUESTION, tools=[WEATHER, TIMER], stream=True)
    chunks = [chunk async for chunk in stream]
    assert joined(chunks) == ("Both.", [("weather", '{"city": "Paris"}'), ("timer", '{"minutes": 5}')])
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [piece.index for piece in pieces if piece.id is not None] == [0, 1]
    assert all(piece.function is not None and piece.function.name is None for piece in pieces if piece.id is None)
    assert len(pieces) > 10


def joined(chunks: Iterable[ChatCompletionChunk]) -> tuple[str, list[tuple[str, str]]]:
    """Return the content of a stream, and its calls."""
    content, calls = "", list[tuple[str, str]]()
    for chunk in chunks:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for piece in delta.tool_calls or []:
            assert piece.function is not None
            if piece.id is not None:
                calls.append((piece.function.name or "", ""))
            assert piece.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + (piece.function.arguments or ""))
    return content, calls


async def test_a_call_alone_has_no_content(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: CALLS.partition("\n")[2].partition("\n<tool_call>")[0])
    answer = await post(await serve(engine), PATH, ChatCompletion, ASK)
    assert answer["choices"][0]["message"]["content"] is None


async def test_an_answer_without_calls(serve: Serve) -> None:
    answer = await post(await serve(FakeEngine()), PATH, ChatCompletion, ASK)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": "Hello there!", "refusal": None}


async def test_an_answer_that_is_cut_says_so(serve: Serve) -> None:
    answer = await post(await serve(FakeEngine(reply=lambda _: CALLS)), PATH, ChatCompletion, {**ASK, "max_tokens": 70})
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert '{"city": "Paris"}'.startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])


async def test_tool_results_follow_their_calls(serve: Serve) -> None:
    engine = FakeEngine(chat_template=WorldTemplate(tool_format=ToolFormats.SIGNATURES.value))
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "dry"},
    ]
    await post(await serve(engine), PATH, ChatCompletion, {**ASK, "messages": messages})
    assert engine.detokenize(engine.requests[0].prompt).decode() == (
        "System: Tools: weather(city), timer(minutes)\n\nUser: What is the weather in Paris?\n\n"
        'Assistant: {"name": "weather", "arguments": {"city": "Paris"}}\n\nObservation: dry\n\nAssistant:'
    )


@pytest.mark.parametrize(
    ("fields", "offered", "enforced"),
    [
        ({}, True, True),
        ({"tool_choice": "auto"}, True, True),
        ({"tool_choice": "none"}, False, False),
        ({"tools": []}, False, False),
        ({"tools": None, "tool_choice": "none"}, False, False),
    ],
)
async def test_tools_are_offered_unless_none_may_be_called(
    serve: Serve, fields: Body, offered: bool, enforced: bool
) -> None:
    engine = FakeEngine(reply=lambda _: CALLS)
    answer = await post(await serve(engine), PATH, ChatCompletion, {**ASK, **fields})
    prompt = engine.detokenize(engine.requests[0].prompt).decode()
    assert ("weather" in prompt.partition("User:")[0]) == offered
    assert (engine.requests[0].grammar is not None) == enforced
    assert ("tool_calls" in answer["choices"][0]["message"]) == enforced


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "timer"]),
        ({"type": "function", "function": {"name": "timer"}}, ["timer"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "timer"}}]},
            },
            ["timer"],
        ),
    ],
)
async def test_a_call_that_is_required_begins_with_the_answer(serve: Serve, choice: object, names: list[str]) -> None:
    engine = FakeEngine(reply=lambda _: CALLS)
    await post(await serve(engine), PATH, ChatCompletion, {**ASK, "tool_choice": choice})
    grammar = called(engine)
    assert "TEXT" not in grammar
    assert [name for name in ("weather", "timer") if f"{name[1:]}" in grammar] == names
    assert engine.detokenize(engine.requests[0].prompt).decode().count('"name": "weather"') == 1


async def test_one_call_ends_the_answer_where_calls_may_not_be_parallel(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: CALLS)
    await post(await serve(engine), PATH, ChatCompletion, {**ASK, "parallel_tool_calls": False})
    assert "last: TEXT" in called(engine)
    assert ")*" not in called(engine).splitlines()[1]


async def test_the_older_functions(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: CALLS.partition('\n<tool_call>\n{"name": "timer')[0])
    call = {"name": "weather", "arguments": "{}"}
    body = {
        "messages": [
            *QUESTION,
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "weather", "content": "dry"},
        ],
        "functions": [WEATHER["function"]],
        "function_call": "auto",
    }
    answer = await post(await serve(engine), PATH, ChatCompletion, body)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    assert "Observation: dry" in engine.detokenize(engine.requests[0].prompt).decode()


def with_function(**fields: object) -> Body:
    return {**ASK, "tools": [{"type": "function", "function": {"name": "a", **fields}}]}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({**ASK, "tools": [WEATHER, WEATHER]}, "tools.1.function.name", "a name that no other tool has"),
        ({**ASK, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "weather, timer"),
        ({"messages": QUESTION, "tool_choice": "required"}, "tool_choice", "since there are no tools"),
        ({**ASK, "tool_choice": "sometimes"}, "tool_choice", "none, auto, required"),
        ({**ASK, "guided_regex": "a+"}, "guided_regex", "a JSON schema unless tool_choice is none"),
        (
            {**ASK, "tool_choice": "required", "grammar": 'root ::= "a"'},
            "grammar",
            "a JSON schema unless tool_choice is none",
        ),
        ({**ASK, "functions": [{"name": "f"}]}, "functions", "null, since the request has tools"),
        ({**ASK, "tools": {}}, "tools", "a list"),
        (with_function(name=""), "tools.0.function.name", "a text of the form"),
        (with_function(name='a"b'), "tools.0.function.name", "a text of the form"),
        (with_function(parameters=[], strict=True), "tools.0.function.parameters", "JSON schema"),
        ({**ASK, "messages": [{"role": "user", "tool_calls": [], "content": None}]}, "messages.0.content", "a text"),
        ({"messages": [{"role": "system", "content": None}]}, "messages.0.content", "a text"),
        (
            {"messages": [{"role": "user", "content": "", "function_call": {"name": "a"}}]},
            "messages.0.tool_calls",
            "only messages of the assistant",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content",
            "reads and writes text only",
        ),
    ],
)
async def test_what_is_wrong_or_contradicts_itself_is_refused(serve: Serve, body: Body, param: str, words: str) -> None:
    engine = FakeEngine()
    error = await error_of(await (await serve(engine)).post(PATH, json=body), 400)
    assert error["param"] == param
    assert words in error["message"]
    assert engine.requests == []


@pytest.fixture
async def demo(load: Load) -> AsyncIterator[openai.AsyncOpenAI]:
    async for client in client_of(await load(demo_choice(2))):
        yield client


GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}


async def test_the_demo_model_calls_tools(demo: openai.AsyncOpenAI) -> None:
    stream = await demo.chat.completions.create(messages=QUESTION, tools=[TIMER, WEATHER], stream=True, **GREEDY)
    chunks = [chunk async for chunk in stream]
    assert joined(chunks) == ("", [("weather", '{"city": "Paris"}')])
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_a_named_tool_is_called_whatever_was_said(demo: openai.AsyncOpenAI) -> None:
    answer = await demo.chat.completions.create(
        messages=QUESTION,
        tools=[WEATHER, TIMER],
        tool_choice={"type": "function", "function": {"name": "timer"}},
        **{**GREEDY, "temperature": 1.0, "seed": 1},
    )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "timer"
    assert type(json.loads(call.function.arguments)["minutes"]) is int


AWKWARD: list[tuple[object, str]] = [
    ({"properties": {"city": {"type": "string", "maxLength": 9, "pattern": "^(?!x)y$"}}}, "#/properties/city/pattern"),
    ({"type": "object", "properties": {"n": {"type": "number", "maximum": 1.797e308}}}, "#/properties/n/maximum"),
    ({"type": "OBJECT", "properties": {"n": {"type": "any"}}}, "#/properties/n/type"),
    ({"properties": 3, "required": None}, "#/properties"),
    ([1], "#"),
]
ROUTES: list[tuple[str, Body, Callable[[object], Body]]] = [
    (
        PATH,
        {"max_tokens": 200, "tool_choice": "required"},
        lambda schema: {"type": "function", "function": {"name": "f", "parameters": schema}},
    ),
    (
        "/v1/messages",
        {"max_tokens": 200, "tool_choice": {"type": "any"}},
        lambda schema: {"name": "f", "input_schema": schema},
    ),
    (
        "/v1/responses",
        {"max_output_tokens": 200, "tool_choice": "required"},
        lambda schema: {"type": "function", "name": "f", "parameters": schema},
    ),
    (
        "/api/chat",
        {"options": {"num_predict": 60}},
        lambda schema: {"type": "function", "function": {"name": "f", "parameters": schema}},
    ),
]


@pytest.mark.parametrize(("path", "fields", "make_tool"), ROUTES, ids=[route[0] for route in ROUTES])
async def test_an_awkward_schema_is_enforced_as_far_as_it_can_be(
    load: Load, path: str, fields: Body, make_tool: Callable[[object], Body]
) -> None:
    async with client_over(await load(demo_choice(2))) as client:
        turns = {"input" if path == "/v1/responses" else "messages": QUESTION}
        for stream in (False, True):
            for schema, place in AWKWARD:
                body = {"model": "demo", **turns, **fields, "tools": [make_tool(schema)], "stream": stream}
                async with client.post(path, json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    assert f"tools.f{place}" in unquote(answer.headers["X-Left-Out"])
                    text = await answer.text()
                    if path == PATH and not stream:
                        [call] = json.loads(text)["choices"][0]["message"]["tool_calls"]
                        assert isinstance(json.loads(call["function"]["arguments"]), dict)


async def test_a_strict_schema_that_cant_be_enforced_is_refused_with_its_place(demo: openai.AsyncOpenAI) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)y$"}}}
    wrong: ChatCompletionToolParam = {
        "type": "function",
        "function": {"name": "f", "parameters": schema, "strict": True},
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema, "strict": True}}
    for fields, param, place in (
        ({"tools": [wrong]}, "tools.f", "tools.f#/properties/a/pattern"),
        ({"response_format": form}, "response_format.json_schema.schema", "#/properties/a/pattern"),
        (
            {"tools": [WEATHER], "response_format": form},
            "response_format.json_schema.schema",
            "response_format.json_schema.schema#/properties/a/pattern",
        ),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await demo.chat.completions.create(messages=QUESTION, **{**GREEDY, **fields})
        assert refused.value.param == param
        assert f"(at {place})" in refused.value.message
        assert "'^(?!x)y$' is not allowed" in refused.value.message
        assert "%" not in refused.value.message


async def test_a_schema_that_is_not_strict_is_no_error(load: Load) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)y$"}}, "required": ["a"]}
    form: Body = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema, "strict": False}}
    async with client_over(await load(demo_choice(2))) as client:
        as_text = {"type": "json_schema", "json_schema": {**form["json_schema"], "schema": json.dumps(schema)}}
        for tools, asked in (([], form), ([WEATHER], form), ([], as_text)):
            body = {"messages": QUESTION, "tools": tools, "response_format": asked, "max_tokens": 5}
            async with client.post(PATH, json=body) as answer:
                assert answer.status == 200, await answer.text()
                place = "response_format.json_schema.schema#/properties/a/pattern"
                assert unquote(answer.headers["X-Left-Out"]) == place


PERSON: dict[str, object] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("question", "choice", "calls"),
    [
        ("What is the weather in Paris?", "auto", True),
        ("Anna is 31 years old.", "none", False),
        ("Anna is 31 years old.", "required", True),
    ],
)
async def test_an_answer_is_a_call_or_follows_the_schema(
    demo: openai.AsyncOpenAI, question: str, choice: Literal["auto", "none", "required"], calls: bool
) -> None:
    answer = await demo.chat.completions.create(
        messages=[{"role": "user", "content": question}],
        tools=[WEATHER],
        tool_choice=choice,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        **GREEDY,
    )
    message = answer.choices[0].message
    if calls:
        assert message.content is None
        assert message.tool_calls is not None
    else:
        assert message.tool_calls is None
        assert json.loads(message.content or "").keys() == {"name", "age"}


async def test_an_answer_that_may_be_either_is_a_whole_call_or_follows_the_schema(demo: openai.AsyncOpenAI) -> None:
    answer = await demo.chat.completions.create(
        messages=[{"role": "user", "content": "Anna is 31 years old."}],
        tools=[WEATHER],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        n=4,
        **{**GREEDY, "temperature": 2.0, "seed": 1},
    )
    for choice in answer.choices:
        message = choice.message
        if message.tool_calls is None:
            assert json.loads(message.content or "").keys() == {"name", "age"}
        else:
            assert message.content is None
