"""The official client of OpenAI drives the responses of the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from pydantic import BaseModel, Field

from tests.clients.conftest import KEY, OTHER_KEY

GREEDY: Any = {"model": "demo", "temperature": 0, "extra_body": {"presence_penalty": 0, "frequency_penalty": 0}}
FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    """A city."""

    city: str = Field(max_length=8)


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_a_response_is_kept_read_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(input=FRANCE, instructions="Be short.", metadata={"a": "b"}, **GREEDY)
    assert (made.status, made.metadata) == ("completed", {"a": "b"})
    assert client.responses.retrieve(made.id).output_text == made.output_text
    assert [item.type for item in client.responses.input_items.list(made.id)] == ["message"]
    with pytest.raises(openai.BadRequestError, match="asked for with `background` and `stream`"):
        client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.with_options(api_key=OTHER_KEY).responses.retrieve(made.id)
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_stream(client: openai.OpenAI) -> None:
    with client.responses.create(input=FRANCE, stream=True, **GREEDY) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == PARIS
    with client.responses.stream(input=FRANCE, **GREEDY) as helper:
        assert helper.get_final_response().output_text == PARIS


async def test_the_async_client(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        assert (await client.responses.create(input=FRANCE, **GREEDY)).output_text == PARIS
        stream = await client.responses.create(input=FRANCE, stream=True, **GREEDY)
        assert [event.type async for event in stream][-1] == "response.completed"


def test_a_response_in_the_background(client: openai.OpenAI) -> None:
    made = client.responses.create(input=FRANCE, background=True, **GREEDY)
    while made.status in ("queued", "in_progress"):
        made = client.responses.retrieve(made.id)
    assert (made.status, made.output_text) == ("completed", PARIS)
    with client.responses.create(input=FRANCE, background=True, stream=True, **GREEDY) as stream:
        first = [next(iter(stream)) for _ in range(4)]
    assert first[0].type == "response.created"
    with client.responses.retrieve(first[0].response.id, stream=True, starting_after=3) as stream:
        events = [*first, *stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == PARIS


def test_a_conversation_goes_on(client: openai.OpenAI) -> None:
    first = client.responses.create(input=FRANCE, **GREEDY)
    second = client.responses.create(input="And of Italy?", previous_response_id=first.id, **GREEDY)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_tokens_are_counted_as_they_are_used(client: openai.OpenAI) -> None:
    first = client.responses.create(input=FRANCE, **GREEDY)
    fields: Any = {"input": "And of Italy?", "previous_response_id": first.id, "tools": [TOOL]}
    counted = client.responses.input_tokens.count(model="demo", **fields)
    assert counted.object == "response.input_tokens"
    usage = client.responses.create(**fields, **GREEDY).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def test_a_kept_conversation_goes_on_from_its_state(client: openai.OpenAI) -> None:
    kept = client.conversations.create(metadata={"a": "b"}, items=[{"role": "system", "content": "Be short."}])
    first = client.responses.create(input=FRANCE, conversation=kept.id, **GREEDY)
    second = client.responses.create(input="And of Italy?", conversation=kept.id, **GREEDY)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    items = list(client.conversations.items.list(kept.id, order="asc"))
    assert [item.to_dict()["role"] for item in items] == ["system", "user", "assistant", "user", "assistant"]
    added = client.conversations.items.create(kept.id, items=[{"role": "user", "content": "Thanks."}])
    client.conversations.items.delete(added.data[0].id or "", conversation_id=kept.id)
    assert client.conversations.update(kept.id, metadata={}).metadata == {}
    assert client.conversations.retrieve(kept.id).id == kept.id
    assert client.conversations.delete(kept.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.list(kept.id)


def test_a_tool_and_its_result(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.responses.create(input=asked, tools=[TOOL], **GREEDY)
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert json.loads(call.arguments) == {"city": "Paris"}
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": '{"temperature": 22, "sky": "sunny", "city": "Paris"}',
    }
    items: Any = [*asked, call.model_dump(), result]
    by_items = client.responses.create(input=items, tools=[TOOL], store=False, **GREEDY)
    by_id = client.responses.create(input=[result], previous_response_id=first.id, tools=[TOOL], **GREEDY)
    assert by_items.output_text == by_id.output_text
    assert "22" in by_id.output_text


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    answer = client.responses.parse(input=FRANCE, text_format=City, **GREEDY)
    assert isinstance(answer.output_parsed, City)


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"prompt: .*does not have it"):
        client.responses.create(input=FRANCE, prompt={"id": "pmpt_1"}, **GREEDY)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input=FRANCE, previous_response_id="resp_none", **GREEDY)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").responses.create(input=FRANCE, **GREEDY)


def test_raw_responses(client: openai.OpenAI) -> None:
    raw = client.responses.with_raw_response.create(input=FRANCE, **GREEDY)
    assert raw.headers["x-request-id"]
    assert raw.parse().output_text == PARIS
