"""Anthropic's API, with its official client: over answers that a test chooses, and of the demo model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic.types import JSONOutputFormatParam, MessageParam, TextBlock, ToolChoiceParam, ToolParam, ToolUseBlock

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.errors import OverloadedError
from rnn_engine.interface import EngineLike
from rnn_engine_server.apis.anthropic.schemas import AnthropicAnswer, AnthropicError
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine
from tests.support.http import PIECES, Body, Load, Serve, Through, check_shape, post
from tests.support.official import anthropic_client

PATH = "/v1/messages"
KEY = "a key"
HI: list[MessageParam] = [{"role": "user", "content": "Hi"}]
WEATHER: ToolParam = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = ' Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
MOST: Any = {"model": "fake", "max_tokens": 200}


async def client_of(engine: EngineLike) -> AsyncIterator[anthropic.AsyncAnthropic]:
    app = make_app(engine, ServerSettings(auth=AuthSettings((ApiKey.of(KEY),))))
    async with anthropic_client(app, KEY) as client:
        yield client


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(reply=lambda request: f" Hi {len(request.prompt)}")


@pytest.fixture
async def client(through: Through, engine: FakeEngine) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async for client in client_of(await through(engine)):
        yield client


def prompt_of(engine: FakeEngine) -> str:
    return engine.detokenize(engine.requests[-1].prompt).decode()


async def test_a_message(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    engine.cached_tokens = 5
    message = await client.messages.create(messages=HI, system="Be short.", extra_body={"temperature": 0.5}, **MOST)
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [("text", "Hi 39")]
    assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "fake")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (34, 5)
    assert message.usage.output_tokens == len(" Hi 39")
    assert prompt_of(engine) == "System: Be short.\n\nUser: Hi\n\nAssistant:"
    assert engine.requests[0].sampling.temperature == 0.5


async def test_a_block_of_text_has_no_citations_since_some_packages_refuse_null(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hi"))
    body: Body = {"messages": HI, **MOST}
    assert (await post(client, PATH, AnthropicAnswer, body))["content"] == [{"type": "text", "text": "Hi"}]
    stream = await (await client.post(PATH, json={**body, "stream": True})).text()
    assert '"content_block":{"type":"text","text":""}' in stream


async def test_requests_have_ids_where_the_client_looks(client: anthropic.AsyncAnthropic) -> None:
    message = await client.messages.create(messages=HI, **MOST)
    assert message._request_id is not None
    with pytest.raises(anthropic.BadRequestError) as raised:
        await client.messages.create(messages=[], **MOST)
    assert raised.value.request_id == raised.value.response.headers["X-Request-Id"]


async def test_a_stream_is_what_the_whole_answer_is(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    engine.reply = lambda _: f"<think>\nWhere?\n</think>\n{CALL}"
    whole = await client.messages.create(messages=HI, tools=[WEATHER], **MOST)
    async with client.messages.stream(messages=HI, tools=[WEATHER], **MOST) as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert without_ids(streamed) == without_ids(whole)
    assert whole.stop_reason == "tool_use"
    call = whole.content[-1]
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.input) == ("weather", {"city": "Paris"})
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": Paris}', {}),
        ('{"city": NaN}', {}),
        ('{"city": [1, {"a": -1e999}]}', {}),
        ('{"city": ' + "[" * 5000 + "]" * 5000 + "}", {}),
        ('{"city": [1.5e300, null, {}]}', {"city": [1.5e300, None, {}]}),
        ("{}", {}),
    ],
    ids=["wrong", "not a number", "infinite", "deep", "right", "empty"],
)
async def test_arguments_that_are_no_object_are_empty_in_a_whole_answer_and_streamed_as_they_come(
    client: anthropic.AsyncAnthropic, engine: FakeEngine, arguments: str, expected: object
) -> None:
    engine.reply = lambda _: f'<tool_call>\n{{"name": "weather", "arguments": {arguments}'
    most = {**MOST, "max_tokens": 20_000}
    whole = await client.messages.create(messages=HI, tools=[WEATHER], **most)
    assert [block.input for block in whole.content if isinstance(block, ToolUseBlock)] == [expected]
    events = await client.messages.create(messages=HI, tools=[WEATHER], stream=True, **most)
    deltas = [event.delta async for event in events if event.type == "content_block_delta"]
    assert len(deltas) > 1 or arguments == "{}"
    assert "".join(delta.partial_json for delta in deltas if delta.type == "input_json_delta") == arguments


def without_ids(message: anthropic.types.Message) -> Body:
    found: Body = message.model_dump(exclude_none=True)
    del found["id"]
    for block in found["content"]:
        block.pop("id", None)
    return found


@PIECES
async def test_the_events_of_a_stream(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: " Hi")
    response = await (await serve(engine)).post(PATH, json={"messages": HI, "max_tokens": 9, "stream": True})
    names = [line.removeprefix("event: ") for line in (await response.text()).splitlines() if line.startswith("event")]
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_stop_sequences_end_an_answer_beside_the_end_of_a_turn(
    client: anthropic.AsyncAnthropic, engine: FakeEngine
) -> None:
    engine.reply = lambda _: " One. Two. Three."
    message = await client.messages.create(messages=HI, stop_sequences=["Two"], **MOST)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Two")
    engine.reply = lambda _: " One.\n\nUser: Two"
    message = await client.messages.create(messages=HI, stop_sequences=["Two"], **MOST)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    message = await client.messages.create(messages=HI, **{**MOST, "max_tokens": 3})
    assert message.stop_reason == "max_tokens"


async def test_a_message_of_the_assistant_is_gone_on_with(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    engine.reply = lambda _: " is blue."
    message = await client.messages.create(messages=[*HI, {"role": "assistant", "content": "The sky"}], **MOST)
    assert prompt_of(engine).endswith("Assistant: The sky")
    assert isinstance(message.content[0], TextBlock)
    assert message.content[0].text == " is blue."


async def test_results_of_tools_follow_their_calls(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    messages: list[MessageParam] = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Where?", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "dry"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    await client.messages.create(messages=messages, tools=[WEATHER], **MOST)
    assert prompt_of(engine).endswith(
        'Assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n\n'
        "Observation: dry\n\nUser: So?\n\nAssistant:"
    )


@pytest.mark.parametrize(
    ("choice", "enforced", "required"),
    [
        ({"type": "auto"}, True, False),
        ({"type": "any"}, True, True),
        ({"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, True, True),
        ({"type": "none"}, False, False),
    ],
)
async def test_choices_of_tools(
    client: anthropic.AsyncAnthropic, engine: FakeEngine, choice: ToolChoiceParam, enforced: bool, required: bool
) -> None:
    await client.messages.create(messages=HI, tools=[WEATHER], tool_choice=choice, **MOST)
    grammar = engine.requests[0].grammar
    assert (grammar is not None) == enforced
    assert (grammar is not None and "TEXT" not in grammar.text) == required


async def test_an_answer_by_a_schema(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form: JSONOutputFormatParam = {"type": "json_schema", "schema": {**schema}}
    await client.messages.create(messages=HI, output_config={"format": form}, **MOST)
    assert engine.requests[0].grammar is not None
    assert engine.requests[0].grammar.kind == "json_schema"


async def test_thinking_is_told_to_the_chat_template(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    engine.reply = lambda _: ">\nWell.\n</think>\n\nYes."
    engine.chat_template = WorldTemplate(thinks=True)
    message = await client.messages.create(messages=HI, thinking={"type": "enabled", "budget_tokens": 5}, **MOST)
    assert prompt_of(engine).endswith("Assistant: <think")
    assert engine.requests[0].thinking is not None
    assert [block.type for block in message.content] == ["thinking", "text"]


async def test_thoughts_are_left_empty_if_their_display_is_omitted(
    client: anthropic.AsyncAnthropic, engine: FakeEngine
) -> None:
    engine.reply = lambda _: "<think>\nWhere?\n</think>\nYes."
    asked: Any = {"messages": HI, "thinking": {"type": "adaptive", "display": "omitted"}, **MOST}
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        assert without_ids(await stream.get_final_message()) == without_ids(whole)
    assert [block.to_dict() for block in whole.content] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    assert "thinking" not in kinds


async def test_deferred_tools_are_offered_once_a_result_refers_to_them(
    client: anthropic.AsyncAnthropic, engine: FakeEngine
) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    reference = {"type": "tool_reference", "tool_name": "weather"}
    for content, is_offered in (("None.", False), ([reference], True)):
        results = {"role": "user", "content": [{**result, "content": content}]}
        messages: Any = [*HI, {"role": "assistant", "content": [call]}, results]
        deferred: Any = {**WEATHER, "defer_loading": True}
        await client.messages.create(messages=messages, tools=[{**WEATHER, "name": "search"}, deferred], **MOST)
        assert ('"weather"' in prompt_of(engine)) is is_offered


async def test_tokens_are_counted(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    count = await client.messages.count_tokens(model="fake", messages=HI, system="Be short.")
    assert count.input_tokens == 39
    assert engine.requests == []


async def test_errors_are_the_clients_own(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    with pytest.raises(anthropic.BadRequestError, match="top_p: 7") as refused:
        await client.messages.create(messages=HI, extra_body={"top_p": 7}, **MOST)
    assert refused.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "top_p: 7.0 is not allowed; expected a number from 0 to 1",
        },
    }
    with pytest.raises(anthropic.AuthenticationError) as unknown:
        await client.with_options(api_key="wrong").messages.create(messages=HI, **MOST)
    check_shape(AnthropicError, unknown.value.body)
    engine.refuse = OverloadedError("full", 1.0)
    with pytest.raises(anthropic.RateLimitError):
        await client.messages.create(messages=HI, **MOST)


async def test_a_stream_that_fails(client: anthropic.AsyncAnthropic, engine: FakeEngine) -> None:
    engine.fail_at = 3
    with pytest.raises(anthropic.APIError, match="device was lost"):
        async for _ in await client.messages.create(messages=HI, stream=True, **MOST):
            pass


def said(*blocks: object, role: str = "user") -> Body:
    return {"messages": [{"role": role, "content": list(blocks)}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": HI}, "max_tokens"),
        ({"messages": [], "max_tokens": 5}, "messages"),
        ({"messages": HI, "max_tokens": -1}, "max_tokens"),
        ({"messages": HI, "max_tokens": 5, "n": 2}, "a message is one answer"),
        ({"messages": HI, "max_tokens": 5, "mcp_servers": [{"url": "a"}]}, "mcp_servers"),
        (said({"type": "image", "source": {}}), "messages.0.content: 'image' is not allowed; expected blocks of text"),
        (said({"type": "text"}), "all of its required fields"),
        (said("text"), "messages.0.content"),
        (said({"type": "tool_use", "id": "1", "name": "a", "input": {}}), "messages of the assistant"),
        (said({"type": "tool_result", "tool_use_id": "1"}, role="assistant"), "messages of the user"),
        (said(role="tool"), "'user', 'assistant' or 'system'"),
        ({**said("x"), "messages": HI, "tools": [{"name": "a"}]}, "tools.0.input_schema"),
        ({"messages": HI, "max_tokens": 5, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": HI, "max_tokens": 5, "tool_choice": {"type": "any"}}, "since there are no tools"),
    ],
)
async def test_what_is_wrong_is_refused(serve: Serve, body: Body, words: str) -> None:
    engine = FakeEngine()
    response = await (await serve(engine)).post(PATH, json=body)
    answer = await response.json()
    assert response.status == 400, answer
    check_shape(AnthropicError, answer)
    assert words in answer["error"]["message"]
    assert engine.requests == []


async def test_fields_of_this_server_go_on_a_message_too(serve: Serve) -> None:
    engine = FakeEngine()
    body = {"messages": HI, "max_tokens": 50, "seed": 7, "save_as": "talk"}
    answer = await post(await serve(engine), PATH, AnthropicAnswer, body)
    assert engine.requests[0].sampling.seed == 7
    assert answer["saved_state"]["name"] == "talk"


async def test_the_demo_model_calls_a_tool(load: Load) -> None:
    async for client in client_of(await load(demo_choice(2))):
        message = await client.messages.create(
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[WEATHER],
            extra_body={"model": "demo", "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0},
            **MOST,
        )
        [call] = message.content
        assert isinstance(call, ToolUseBlock)
        assert (call.name, call.input) == ("weather", {"city": "Paris"})
        assert message.stop_reason == "tool_use"
