"""The official client of Anthropic drives the demo model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from anthropic.types import MessageParam, TextBlock, ToolChoiceParam, ToolParam, ToolUseBlock
from pydantic import BaseModel

from tests.clients.conftest import KEY

GREEDY: Any = {
    "model": "demo",
    "max_tokens": 60,
    "extra_body": {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0},
}
FRANCE: list[MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[MessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARIS = "The capital of France is Paris."
TOOL: ToolParam = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class City(BaseModel):
    """A city."""

    city: Literal["Paris", "Rome"]


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(messages=FRANCE, **GREEDY)
    assert (text_of(message), message.stop_reason, message.role) == (PARIS, "end_turn", "assistant")
    assert message.usage.output_tokens > 0
    raw = client.messages.with_raw_response.create(messages=FRANCE, **GREEDY)
    assert raw.headers["x-request-id"]


def test_streams(client: anthropic.Anthropic) -> None:
    with client.messages.stream(messages=FRANCE, system="Be short.", **GREEDY) as stream:
        text = "".join(stream.text_stream)
        assert text_of(stream.get_final_message()) == text
    kinds = [event.type for event in client.messages.create(messages=FRANCE, stream=True, **GREEDY)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


async def test_the_async_client(url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        assert text_of(await client.messages.create(messages=FRANCE, **GREEDY)) == PARIS
        async with client.messages.stream(messages=FRANCE, **GREEDY) as stream:
            assert await stream.get_final_text() == PARIS


def test_a_bearer_token_serves_as_well(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key=None, auth_token=KEY, max_retries=0) as client:
        assert client.messages.count_tokens(model="demo", messages=FRANCE).input_tokens > 0


def test_tokens_are_counted_as_they_are_used(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="demo", messages=FRANCE, system="Be short.", tools=[TOOL])
    usage = client.messages.create(messages=FRANCE, system="Be short.", tools=[TOOL], **GREEDY).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_tool_and_its_result(client: anthropic.Anthropic) -> None:
    asked = client.messages.create(messages=WEATHER, tools=[TOOL], **GREEDY)
    [call] = asked.content
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.input, asked.stop_reason) == ("weather", {"city": "Paris"}, "tool_use")
    conversation: list[MessageParam] = [
        *WEATHER,
        {"role": "assistant", "content": asked.content},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": '{"temperature": 22, "sky": "sunny", "city": "Paris"}',
                }
            ],
        },
    ]
    assert "22" in text_of(client.messages.create(messages=conversation, tools=[TOOL], **GREEDY))


def test_a_tool_may_be_required(client: anthropic.Anthropic) -> None:
    choices: list[ToolChoiceParam] = [{"type": "any"}, {"type": "tool", "name": "weather"}]
    for choice in choices:
        asked = client.messages.create(messages=WEATHER, tools=[TOOL], tool_choice=choice, **GREEDY)
        assert asked.stop_reason == "tool_use"
    free = client.messages.create(messages=WEATHER, tools=[TOOL], tool_choice={"type": "none"}, **GREEDY)
    assert free.stop_reason != "tool_use"


def test_a_model_without_thoughts_answers_at_once(client: anthropic.Anthropic) -> None:
    fields: Any = {**GREEDY, "max_tokens": 1100}
    message = client.messages.create(messages=FRANCE, thinking={"type": "enabled", "budget_tokens": 1024}, **fields)
    assert [block.type for block in message.content] == ["text"]


def test_tools_of_anthropics_servers_are_left_out(client: anthropic.Anthropic) -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    answer = client.messages.with_raw_response.create(messages=FRANCE, tools=[search], **GREEDY)
    assert answer.headers["X-Left-Out"] == "tools.web_search_20250305"


def test_stop_sequences_and_limits(client: anthropic.Anthropic) -> None:
    message = client.messages.create(messages=FRANCE, stop_sequences=[" Paris"], **GREEDY)
    assert (text_of(message), message.stop_reason) == ("The capital of France is", "stop_sequence")
    assert message.stop_sequence == " Paris"
    message = client.messages.create(messages=FRANCE, **{**GREEDY, "max_tokens": 2})
    assert message.stop_reason == "max_tokens"


def test_errors_are_the_clients_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(messages=FRANCE, **GREEDY)
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        client.messages.create(messages=[], **GREEDY)
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    with pytest.raises(anthropic.BadRequestError, match="blocks of text"):
        client.messages.create(messages=[{"role": "user", "content": [image]}], **GREEDY)


def test_the_clients_own_loop_of_tools(client: anthropic.Anthropic) -> None:
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Return the weather in a city."""
        return f'{{"temperature": 22, "sky": "sunny", "city": "{city}"}}'

    asked: Any = WEATHER
    runner = client.beta.messages.tool_runner(tools=[weather], messages=asked, model="demo", max_tokens=60)
    last = runner.until_done()
    assert last.stop_reason == "end_turn"


def test_a_parsed_answer(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(messages=FRANCE, output_format=City, **GREEDY)
    assert isinstance(answer.parsed_output, City)


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
