"""OpenAI's conversations, with the official client: their items, their owners, and responses that continue them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseInputItemParam

from rnn_engine_server.apis.common.owned import PageOf
from rnn_engine_server.apis.openai.response_items import KeptConversation
from rnn_engine_server.apis.openai.response_schemas import ResponseItem
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from rnn_engine_server.store.responses import Conversations
from rnn_engine_server.store.turns import Place
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve, Through, check_shape, error_of, post
from tests.support.official import openai_client

PATH = "/v1/conversations"
KEYS = (ApiKey.of("ann's key", "ann", Scope.USE), ApiKey.of("bob's key", "bob", Scope.USE))
MODEL: Any = {"model": "fake"}
HI: ResponseInputItemParam = {"role": "user", "content": "Hi"}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(reply=lambda request: f" Hi {len(request.prompt)}")


@pytest.fixture
async def client(through: Through, engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    app = make_app(await through(engine), ServerSettings(auth=AuthSettings(KEYS)))
    async with openai_client(app, "ann's key") as client:
        yield client


def prompt_of(engine: FakeEngine) -> str:
    return engine.detokenize(engine.requests[-1].prompt).decode()


async def texts_of(client: openai.AsyncOpenAI, conversation_id: str) -> list[str]:
    items = client.conversations.items.list(conversation_id, order="asc", limit=2)  # the client reads all pages
    return [item.to_dict()["content"][0]["text"] async for item in items]  # type: ignore[index]


async def test_a_conversation_is_kept_changed_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HI], metadata={"a": "b"})
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    await client.conversations.update(made.id, metadata={"c": "d"})
    found = await client.conversations.retrieve(made.id)
    assert (found.created_at, found.metadata) == (made.created_at, {"c": "d"})
    assert (await client.conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError, match="it never existed, or it was deleted"):
        await client.conversations.retrieve(made.id)


async def test_items_are_added_read_and_removed(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create()
    added = await client.conversations.items.create(
        made.id,
        items=[
            HI,
            {"type": "message", "role": "assistant", "content": "Hello"},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "dry"},
        ],
    )
    assert [item.type for item in added.data] == ["message", "message", "function_call", "function_call_output"]
    listed = [item.id async for item in client.conversations.items.list(made.id)]
    assert listed == [item.id for item in reversed(added.data)]
    one = await client.conversations.items.retrieve(str(added.first_id), conversation_id=made.id)
    assert one.type == "message"
    left = await client.conversations.items.delete(str(added.first_id), conversation_id=made.id)
    assert left.id == made.id
    with pytest.raises(openai.NotFoundError, match="has no item"):
        await client.conversations.items.retrieve(str(added.first_id), conversation_id=made.id)


async def test_responses_go_on_with_a_conversation_and_add_to_it(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    made = await client.conversations.create(items=[{"role": "developer", "content": "Be brief."}])
    first = await client.responses.create(input="Hi", conversation=made.id, **MODEL)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    async with client.responses.stream(input="Bye", conversation={"id": made.id}, store=False, **MODEL) as stream:
        assert (await stream.get_final_response()).output_text == "Hi 68"
    assert prompt_of(engine) == "System: Be brief.\n\nUser: Hi\n\nAssistant: Hi 39\n\nUser: Bye\n\nAssistant:"
    assert await texts_of(client, made.id) == ["Be brief.", "Hi", "Hi 39", "Bye", "Hi 68"]


async def test_a_question_that_is_in_the_conversation_already_needs_no_input(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    made = await client.conversations.create(items=[HI])
    await client.responses.create(conversation=made.id, **MODEL)
    assert prompt_of(engine) == "User: Hi\n\nAssistant:"
    assert await texts_of(client, made.id) == ["Hi", "Hi 20"]
    empty = await client.conversations.create()
    with pytest.raises(openai.BadRequestError, match="no conversation yet"):
        await client.responses.create(conversation=empty.id, **MODEL)


async def test_what_fails_adds_nothing(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    made = await client.conversations.create(items=[HI])
    engine.fail_at = 3
    with pytest.raises(openai.APIError):
        await client.responses.create(input="Bye", conversation=made.id, **MODEL)
    assert await texts_of(client, made.id) == ["Hi"]


async def test_a_conversation_that_is_deleted_while_it_is_answered(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    made = await client.conversations.create(items=[HI])
    engine.hold = 2
    stream = await client.responses.create(input="Bye", conversation=made.id, stream=True, **MODEL)
    await engine.held.wait()
    await client.conversations.delete(made.id)
    engine.release.set()
    assert [event.type async for event in stream][-1] == "response.completed"
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)


async def test_a_conversation_belongs_to_its_key(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create(items=[HI])
    other = client.with_options(api_key="bob's key")
    with pytest.raises(openai.NotFoundError):
        await other.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await other.conversations.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await other.conversations.items.create(made.id, items=[HI])
    with pytest.raises(openai.NotFoundError):
        await other.responses.create(input="Hi", conversation=made.id, **MODEL)


async def test_the_shapes_of_the_answers(serve: Serve) -> None:
    client = await serve(FakeEngine())
    made = await post(client, PATH, KeptConversation, {"items": "Hi"})
    page = await (await client.get(f"{PATH}/{made['id']}/items")).json()
    check_shape(PageOf[ResponseItem], page)
    assert page["data"][0]["content"] == [{"type": "input_text", "text": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {"items": [{"type": 3}]}, "items.0.type"),
        (PATH, {"metadata": {"a": 1}}, "metadata.a"),
        (PATH, {"itmes": []}, "itmes"),
        ("/v1/responses", {"input": "Hi", "conversation": 7}, "conversation"),
        ("/v1/responses", {"input": "Hi", "conversation": "a", "previous_response_id": "b"}, "conversation"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(serve: Serve, path: str, body: Body, param: str) -> None:
    assert (await error_of(await (await serve(FakeEngine())).post(path, json=body), 400))["param"] == param


async def test_what_is_read_counts_in_the_memory_of_requests(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_held_bytes=400_000)))
    items = [{"role": "user", "content": "x" * 40_000}]
    made = await post(client, PATH, KeptConversation, {})
    for _ in range(8):
        assert (await client.post(f"{PATH}/{made['id']}/items", json={"items": items})).status == 200
    error = await error_of(await client.get(f"{PATH}/{made['id']}/items"), 413)
    assert "the conversation would take about" in error["message"]
    page = await (await client.get(f"{PATH}/{made['id']}/items?limit=2")).json()
    assert (len(page["data"]), page["has_more"]) == (2, True)
    item = await (await client.get(f"{PATH}/{made['id']}/items/{page['last_id']}")).json()
    assert item == page["data"][1]
    await error_of(await client.get(f"{PATH}/{made['id']}/items/x"), 404)
    await error_of(await client.post("/v1/responses", json={"input": "Hi", "conversation": made["id"]}), 413)


async def test_an_item_that_is_deleted_while_it_is_asked_for(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await client.conversations.create(items=[HI])
    [item] = (await client.conversations.items.list(made.id)).data
    assert item.id is not None
    find = Conversations.item

    async def find_and_delete(store: Conversations, owner: str | None, conversation_id: str, item_id: str) -> Place:
        place = await find(store, owner, conversation_id, item_id)
        await store.delete(owner, conversation_id)
        return place

    monkeypatch.setattr(Conversations, "item", find_and_delete)
    with pytest.raises(openai.NotFoundError, match="was deleted meanwhile"):
        await client.conversations.items.retrieve(item.id, conversation_id=made.id)
