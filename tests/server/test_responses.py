"""OpenAI's responses, with the official client: over answers that a test chooses, and of the demo model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import (
    FunctionToolParam,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ResponseStreamEvent,
)

from rnn_engine.interface import EngineLike
from rnn_engine_server.apis.common.owned import PageOf
from rnn_engine_server.apis.openai.response_schemas import Response, ResponseEvent, ResponseItem
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine
from tests.support.http import PIECES, Body, Load, Serve, Through, check_shape, error_of, post
from tests.support.official import openai_client

PATH = "/v1/responses"
ANN, BOB = "ann's key", "bob's key"
KEYS = (ApiKey.of(ANN, "ann", Scope.USE), ApiKey.of(BOB, "bob", Scope.USE))
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
TIMER: FunctionToolParam = {
    "type": "function",
    "name": "timer",
    "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
    "strict": True,
}
CALL = ' Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
MODEL: Any = {"model": "fake"}


async def client_of(engine: EngineLike) -> AsyncIterator[openai.AsyncOpenAI]:
    app = make_app(engine, ServerSettings(auth=AuthSettings(KEYS)))
    async with openai_client(app, ANN) as client:
        yield client


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(reply=lambda request: f" Hi {len(request.prompt)}")


@pytest.fixture
async def client(through: Through, engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async for client in client_of(await through(engine)):
        yield client


def prompt_of(engine: FakeEngine) -> str:
    return engine.detokenize(engine.requests[-1].prompt).decode()


async def test_a_response(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.responses.create(
        input="Hi", instructions="Be brief.", max_output_tokens=20, temperature=0.5, metadata={"a": "b"}, **MODEL
    )
    assert prompt_of(engine) == "System: Be brief.\n\nUser: Hi\n\nAssistant:"
    assert (engine.requests[0].max_tokens, engine.requests[0].sampling.temperature) == (20, 0.5)
    assert (answer.status, answer.output_text, answer.metadata) == ("completed", "Hi 39", {"a": "b"})
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (39, 6, 45)


async def test_items_are_one_conversation(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    await client.responses.create(
        input=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "Wea"}, {"type": "input_text", "text": "ther?"}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": "Let me look."},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "dry"},
        ],
        **MODEL,
    )
    assert prompt_of(engine) == (
        'System: Be brief.\n\nUser: Weather?\n\nAssistant: Let me look.\n<tool_call>\n{"name": "weather", '
        '"arguments": {"city": "Paris"}}\n</tool_call>\n\nObservation: dry\n\nAssistant:'
    )


async def events_of(client: openai.AsyncOpenAI, **fields: Any) -> list[ResponseStreamEvent]:  # noqa: ANN401
    events = [event async for event in await client.responses.create(stream=True, **{**MODEL, **fields})]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


async def test_the_events_of_a_stream(client: openai.AsyncOpenAI) -> None:
    events = await events_of(client, input="Hi")
    kinds = [event.type for event in events]
    assert [kind for number, kind in enumerate(kinds) if kinds[number - 1] != kind or number == 0] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hi 20"
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hi 20"
    assert last.response.usage is not None


async def test_a_call_begins_without_arguments_even_if_all_of_it_comes_at_once(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.reply = lambda _: CALL
    events = await events_of(client, input="Weather?", tools=[WEATHER])
    items = [event.item for event in events if event.type == "response.output_item.added"]
    [begun] = [item for item in items if item.type == "function_call"]
    assert (begun.arguments, begun.status) == ("", "in_progress")


async def test_every_event_has_its_type_as_name(serve: Serve) -> None:
    response = await (await serve(FakeEngine(reply=lambda _: CALL))).post(
        PATH, json={"input": "Hi", "tools": [WEATHER], "stream": True}
    )
    *frames, end = (await response.text()).split("\n\n")
    assert end == ""
    for frame in frames:
        name, _, data = frame.partition("\ndata: ")
        event = json.loads(data)
        assert name == f"event: {event['type']}"
        check_shape(ResponseEvent, event)


@PIECES
async def test_a_stream_tells_how_far_it_has_come(serve: Serve) -> None:
    response = await (await serve(FakeEngine(cached_tokens=2))).post(
        PATH, json={"input": "Hi", "stream": True, "return_progress": True, "timings_per_token": True}
    )
    events = [json.loads(frame.partition("\ndata: ")[2]) for frame in (await response.text()).split("\n\n")[:-1]]
    for event in events:
        check_shape(ResponseEvent, event)
    assert [event["type"] for event in events[:4]] == ["response.created", *["response.in_progress"] * 3]
    assert [event["prompt_progress"]["processed"] for event in events[2:4]] == [2, 20]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    counts = [event["timings"]["predicted_n"] for event in deltas]
    assert counts == list(range(counts[0], counts[0] + len(deltas)))
    assert events[-1]["timings"]["cache_n"] == 2


async def test_the_clients_own_reading_of_a_stream(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = lambda _: CALL
    async with client.responses.stream(input="Weather?", tools=[WEATHER], **MODEL) as stream:
        final = await stream.get_final_response()
    message, call = final.output
    assert isinstance(message, ResponseOutputMessage)
    assert final.output_text == "Let me look."
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"})


@PIECES
async def test_calls_come_piece_by_piece(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.reply = lambda _: CALL
    events = await events_of(client, input="Weather?", tools=[WEATHER])
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert len(pieces) > 5
    assert "".join(pieces) == done.arguments == '{"city": "Paris"}'
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1]


@pytest.mark.parametrize("streams", [False, True])
async def test_thoughts_are_items_of_their_own(client: openai.AsyncOpenAI, engine: FakeEngine, streams: bool) -> None:
    engine.reply = lambda _: " <think>Hm.</think>Yes."
    if streams:
        last = (await events_of(client, input="Hi"))[-1]
        assert last.type == "response.completed"
        answer = last.response
    else:
        answer = await client.responses.create(input="Hi", **MODEL)
    thoughts, _ = answer.output
    assert isinstance(thoughts, ResponseReasoningItem)
    assert thoughts.content is not None
    assert [part.text for part in thoughts.content] == ["Hm."]
    assert answer.output_text == "Yes."
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == len(" <think>Hm.")


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_that_is_cut(client: openai.AsyncOpenAI, streams: bool) -> None:
    if streams:
        last = (await events_of(client, input="Hi", max_output_tokens=3))[-1]
        assert last.type == "response.incomplete"
        answer = last.response
    else:
        answer = await client.responses.create(input="Hi", max_output_tokens=3, **MODEL)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    [message] = answer.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.status, answer.output_text) == ("incomplete", "Hi")


async def test_a_stream_that_fails(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fail_at = 3
    last = (await events_of(client, input="Hi"))[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(last.response.id)


async def test_logprobs_join_to_the_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(
        input="Hi", include=["message.output_text.logprobs"], top_logprobs=2, **MODEL
    )
    [message] = answer.output
    assert isinstance(message, ResponseOutputMessage)
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(entry.token for entry in part.logprobs) == "Hi 20"
    assert len(part.logprobs[0].top_logprobs) == 2


async def test_a_conversation_goes_on_from_a_kept_response(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    first = await client.responses.create(input="Hi", instructions="Be brief.", **MODEL)
    second = await client.responses.create(input="Bye", previous_response_id=first.id, **MODEL)
    assert second.previous_response_id == first.id
    assert prompt_of(engine) == "User: Hi\n\nAssistant: Hi 39\n\nUser: Bye\n\nAssistant:"
    await client.responses.delete(first.id)
    await client.responses.create(input="?", previous_response_id=second.id, **MODEL)
    assert prompt_of(engine).startswith("User: Hi\n\n")


async def test_what_is_kept_can_be_read_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(input="Hi", **MODEL)
    assert (await client.responses.retrieve(made.id)).output_text == made.output_text
    [item] = [item async for item in client.responses.input_items.list(made.id)]
    assert item.model_dump(include={"type", "role"}) == {"type": "message", "role": "user"}
    with pytest.raises(openai.BadRequestError, match="asked for with `background`"):
        await client.responses.cancel(made.id)
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_input_items_come_in_pages(serve: Serve) -> None:
    client = await serve(FakeEngine())
    said = [{"role": "user", "content": text} for text in "abc"]
    made = await post(client, PATH, Response, {"input": said})
    page = await (await client.get(f"{PATH}/{made['id']}/input_items?limit=2&order=asc")).json()
    check_shape(PageOf[ResponseItem], page)
    assert ([item["content"][0]["text"] for item in page["data"]], page["has_more"]) == (["a", "b"], True)
    rest = await (await client.get(f"{PATH}/{made['id']}/input_items?order=asc&after={page['last_id']}")).json()
    assert ([item["content"][0]["text"] for item in rest["data"]], rest["has_more"]) == (["c"], False)
    error = await error_of(await client.get(f"{PATH}/{made['id']}/input_items?after=x"), 400)
    assert error["param"] == "after"
    error = await error_of(await client.get(f"{PATH}/{made['id']}/input_items?order=ascending"), 400)
    assert (error["param"], "expected asc or desc" in error["message"]) == ("order", True)


async def test_responses_are_listed_in_pages(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(auth=AuthSettings(KEYS)))
    own, others = ({"Authorization": f"Bearer {key}"} for key in (ANN, BOB))
    made = [await (await client.post(PATH, json={"input": text}, headers=own)).json() for text in "abc"]
    ids = [each["id"] for each in made]

    async def listed(**query: str | int) -> Body:
        found: Body = await (await client.get(PATH, params=query, headers=own)).json()
        check_shape(PageOf[Response], found)
        return found

    ends = {"first_id": ids[2], "last_id": ids[0], "has_more": False}
    assert await listed() == {"object": "list", "data": made[::-1], **ends}
    page = await listed(limit=1, after=ids[2])
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[1]], True)
    assert [each["id"] for each in (await listed(order="asc", limit=2))["data"]] == ids[:2]
    wrong = await client.get(PATH, params={"after": "resp_x"}, headers=own)
    assert (await error_of(wrong, 400))["param"] == "after"
    assert (await (await client.get(PATH, headers=others)).json())["data"] == []


async def test_items_may_be_referred_to(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    first = await client.responses.create(input="Hi", **MODEL)
    await client.responses.create(
        input=[
            {"role": "user", "content": "Hi"},
            {"type": "item_reference", "id": first.output[0].id or ""},
            {"role": "user", "content": "Bye"},
        ],
        **MODEL,
    )
    assert prompt_of(engine) == "User: Hi\n\nAssistant: Hi 20\n\nUser: Bye\n\nAssistant:"
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(input=[{"type": "item_reference", "id": "msg_none"}], **MODEL)
    with pytest.raises(openai.NotFoundError, match="has an item"):  # a response is no item
        await client.responses.create(input=[{"type": "item_reference", "id": first.id}], **MODEL)


async def test_a_response_belongs_to_its_key(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(input="Hi", **MODEL)
    other = client.with_options(api_key=BOB)
    with pytest.raises(openai.NotFoundError):
        await other.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await other.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await other.responses.create(input="Bye", previous_response_id=made.id, **MODEL)
    with pytest.raises(openai.NotFoundError):
        await other.responses.create(input=[{"type": "item_reference", "id": made.output[0].id or ""}], **MODEL)


async def test_what_is_not_to_be_stored_is_not(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(input="Hi", store=False, **MODEL)
    with pytest.raises(openai.NotFoundError, match="it never existed, or it was deleted"):
        await client.responses.retrieve(made.id)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": None}, "input", "at least 1"),
        ({"input": [{"type": 3}]}, "input.0.type", "function_call"),
        ({"input": [{"role": "poet", "content": "a"}]}, "input.0", "system"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0", "text only"),
        ({"input": [{"type": "function_call", "name": "a"}]}, "input.0", "all of its required fields"),
        ({"input": [{"type": "reasoning", "content": 3}]}, "input.0.content", "list of text parts"),
        ({"input": [{"type": "reasoning", "summary": "Hm"}]}, "input.0.summary", "list of text parts"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1.function.name", "no other tool"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "no tools"),
        ({"text": {"format": {"type": "xml"}}}, "text.format", "json_schema"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "text.format", "another field"),
        ({"background": True, "store": False}, "store", "fetched later"),
        ({"n": 2}, "n", "one answer"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"max_output_tokens": -1}, "max_output_tokens", "at least 0"),
        ({"inptu": "Hi"}, "inptu", "did you mean 'input'?"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(serve: Serve, fields: Body, param: str, words: str) -> None:
    engine = FakeEngine()
    error = await error_of(await (await serve(engine)).post(PATH, json={"input": "Hi", **fields}), 400)
    assert error["param"] == param, error
    assert words in error["message"]
    assert engine.requests == []


@pytest.fixture
async def demo(load: Load) -> AsyncIterator[openai.AsyncOpenAI]:
    async for client in client_of(await load(demo_choice(2))):
        yield client


GREEDY: Any = {"model": "demo", "temperature": 0, "extra_body": {"presence_penalty": 0, "frequency_penalty": 0}}


async def test_the_demo_model_calls_a_tool_and_goes_on_from_its_state(demo: openai.AsyncOpenAI) -> None:
    first = await demo.responses.create(input="What is the weather in Paris?", tools=[TIMER, WEATHER], **GREEDY)
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"})
    assert first.usage is not None
    second = await demo.responses.create(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "dry"}],
        previous_response_id=first.id,
        tools=[TIMER, WEATHER],
        **GREEDY,
    )
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    assert second.status == "completed"


async def test_the_demo_model_keeps_to_a_schema(demo: openai.AsyncOpenAI) -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    }
    answer = await demo.responses.create(
        input="What is the capital of France?",
        text={"format": {"type": "json_schema", "name": "city", "schema": schema, "strict": True}},
        **GREEDY,
    )
    assert list(json.loads(answer.output_text)) == ["city"]
