"""The official client of OpenAI drives the chats, completions, embeddings and models of the demo model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.clients.conftest import KEY

GREEDY: Any = {"model": "demo", "temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
FRANCE: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARIS = "The capital of France is Paris."


class Weather(BaseModel):
    """The weather in a city."""

    city: str


class City(BaseModel):
    """A city."""

    city: str = Field(max_length=8)


TOOL = openai.pydantic_function_tool(Weather, name="weather")


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=FRANCE, **GREEDY)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", PARIS, "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.system_fingerprint


async def test_a_chat_of_the_async_client(async_client: openai.AsyncOpenAI) -> None:
    answer = await async_client.chat.completions.create(messages=FRANCE, **GREEDY)
    assert answer.choices[0].message.content == PARIS
    stream = await async_client.chat.completions.create(messages=FRANCE, stream=True, **GREEDY)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == PARIS
    async with async_client.chat.completions.stream(messages=FRANCE, **GREEDY) as events:
        assert (await events.get_final_completion()).choices[0].message.content == PARIS


def test_a_stream_with_its_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        messages=FRANCE, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *chunks, last = stream
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == PARIS
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert (last.choices, last.usage is not None) == ([], True)


def test_tools_and_their_results(client: openai.OpenAI) -> None:
    asked = client.chat.completions.create(messages=WEATHER, tools=[TOOL], **GREEDY).choices[0]
    assert asked.finish_reason == "tool_calls"
    assert asked.message.tool_calls is not None
    [call] = asked.message.tool_calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    result: ChatCompletionMessageParam = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": '{"temperature": 22, "sky": "sunny", "city": "Paris"}',
    }
    messages: Any = [*WEATHER, asked.message, result]  # the message as the client gave it, with all of its fields
    answer = client.chat.completions.create(messages=messages, tools=[TOOL], **GREEDY).choices[0]
    assert "22" in (answer.message.content or "")


def test_calls_are_put_together_from_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(messages=WEATHER, tools=[TOOL], **GREEDY) as stream:
        kinds = {event.type for event in stream}
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert calls is not None
    assert [call.function.parsed_arguments for call in calls] == [Weather(city="Paris")]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_may_be_required(client: openai.OpenAI, choice: Any) -> None:  # noqa: ANN401
    answer = client.chat.completions.create(messages=WEATHER, tools=[TOOL], tool_choice=choice, **GREEDY)
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("tools", [{}, {"tools": [TOOL]}])
def test_a_call_may_be_forbidden(client: openai.OpenAI, tools: Any) -> None:  # noqa: ANN401
    answer = client.chat.completions.create(messages=WEATHER, tool_choice="none", max_tokens=5, **tools, **GREEDY)
    assert answer.choices[0].message.tool_calls is None


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    message = client.chat.completions.parse(messages=FRANCE, response_format=City, **GREEDY).choices[0].message
    assert isinstance(message.parsed, City)
    with client.chat.completions.stream(messages=FRANCE, response_format=City, **GREEDY) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == message.parsed


def test_an_answer_of_json(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=FRANCE, response_format={"type": "json_object"}, max_tokens=60, **GREEDY
    )
    assert (answer.choices[0].message.content or "").startswith("{")


def test_logprobs_join_to_the_content(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(messages=FRANCE, logprobs=True, top_logprobs=2, **GREEDY).choices[0]
    assert whole.logprobs is not None
    assert whole.logprobs.content is not None
    assert "".join(entry.token for entry in whole.logprobs.content) == whole.message.content
    assert {len(entry.top_logprobs) for entry in whole.logprobs.content} == {2}
    stream = client.chat.completions.create(messages=FRANCE, logprobs=True, stream=True, **GREEDY)
    told = [chunk.choices[0].logprobs for chunk in stream]
    assert "".join(entry.token for part in told if part for entry in part.content or ()) == PARIS


def test_thoughts_are_told_apart(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo",
        messages=FRANCE,
        temperature=0,
        max_tokens=12,
        extra_body={
            "chat_template_kwargs": {"enable_thinking": True},
            "thinking_budget_tokens": 3,
            "logit_bias": [["\n\n", False]],  # the demo model was not trained to think, and would end at once
        },
    )
    message = answer.choices[0].message
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"]
    assert "think" not in (message.content or "")


def test_several_answers_with_a_seed(client: openai.OpenAI) -> None:
    def draw() -> list[str | None]:
        answer = client.chat.completions.create(
            model="demo", messages=FRANCE, n=3, seed=7, temperature=1.5, max_completion_tokens=4
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    assert draw() == draw()


def test_stop_texts_and_limits(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=FRANCE, stop=[" Paris"], **GREEDY).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("The capital of France is", "stop")
    answer = client.chat.completions.create(messages=FRANCE, max_tokens=2, **GREEDY).choices[0]
    assert answer.finish_reason == "length"


def test_an_answer_that_is_begun(client: openai.OpenAI) -> None:
    begun: list[ChatCompletionMessageParam] = [*FRANCE, {"role": "assistant", "content": "The capital of"}]
    answer = client.chat.completions.create(messages=begun, **GREEDY)
    assert answer.choices[0].message.content == " France is Paris."


def test_fields_that_clients_send_by_habit(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=[{"role": "developer", "content": [{"type": "text", "text": "Be short."}]}, *FRANCE],
        logit_bias={},
        metadata={"a": "b"},
        modalities=["text"],
        parallel_tool_calls=True,
        prediction={"type": "content", "content": "Paris"},
        prompt_cache_key="a",
        reasoning_effort="low",
        response_format={"type": "text"},
        safety_identifier="s",
        service_tier="auto",
        store=False,
        top_p=1,
        user="u",
        verbosity="low",
        max_tokens=3,
        **GREEDY,
    )
    assert answer.choices[0].finish_reason == "length"


def test_what_the_assistant_refused_is_a_part_of_the_conversation(client: openai.OpenAI) -> None:
    said: list[ChatCompletionMessageParam] = [*FRANCE, {"role": "assistant", "content": None, "refusal": "No."}]
    begun: list[ChatCompletionMessageParam] = [*FRANCE, {"role": "assistant", "content": "No."}]
    one, other = (
        client.chat.completions.create(messages=[*messages, *FRANCE], max_tokens=4, **GREEDY)
        for messages in (said, begun)
    )
    assert one.choices[0].message.content == other.choices[0].message.content


def test_completions(client: openai.OpenAI) -> None:
    create = client.completions.create
    one = create(prompt="User: What is the capital of France?\n\nAssistant:", stop="\n\n", **GREEDY)
    assert one.choices[0].text.strip() == PARIS
    several = create(prompt=["One", "Two"], n=2, max_tokens=2, logprobs=2, echo=True, **GREEDY)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    for choice, prompt in zip(several.choices, ["One", "One", "Two", "Two"], strict=True):
        assert choice.text.startswith(prompt)
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or ()) == choice.text
    streamed = create(prompt=[[40, 41]], max_tokens=3, stream=True, **GREEDY)
    whole = create(prompt=[[40, 41]], max_tokens=3, suffix="", best_of=1, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text


def test_embeddings(client: openai.OpenAI) -> None:
    plain = client.embeddings.create(model="demo", input=["One", "Two"], encoding_format="float")
    packed = client.embeddings.create(model="demo", input="Two", user="u")  # the client asks for base64
    assert [entry.index for entry in plain.data] == [0, 1]
    assert packed.data[0].embedding == pytest.approx(plain.data[1].embedding, abs=1e-6)
    assert len(client.embeddings.create(model="demo", input=[[40, 41]], dimensions=8).data[0].embedding) == 8


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").object == "model"


async def test_models_and_embeddings_of_the_async_client(async_client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in async_client.models.list()] == ["demo"]
    entries = (await async_client.embeddings.create(model="demo", input="One")).data
    assert len(entries) == 1
    text = (await async_client.completions.create(prompt="One", max_tokens=1, **GREEDY)).choices[0].text
    assert text


def test_raw_responses(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(messages=FRANCE, **GREEDY)
    assert raw.headers["x-request-id"] == raw.request_id
    assert raw.parse().choices[0].message.content == PARIS
    with client.chat.completions.with_streaming_response.create(messages=FRANCE, **GREEDY) as streamed:
        assert streamed.parse().choices[0].message.content == PARIS


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="top_p: 7") as refused:
        create(messages=FRANCE, top_p=7, **GREEDY)
    assert (refused.value.param, refused.value.type) == ("top_p", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="A cat")
    with pytest.raises(openai.BadRequestError, match=r"web_search_options: .*does not have it"):
        create(messages=FRANCE, web_search_options={}, **GREEDY)
    image: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    with pytest.raises(openai.BadRequestError, match="reads and writes text only"):
        create(messages=image, **GREEDY)
