"""The official client against a listening server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from rnn_engine.errors import OverloadedError
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Through
from tests.support.official import openai_client

KEY = "a key"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(reply=lambda request: f" Hi {len(request.prompt)}", num_slots=4)


@pytest.fixture
async def client(through: Through, engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    app = make_app(await through(engine), ServerSettings(auth=AuthSettings((ApiKey.of(KEY),))))
    async with openai_client(app, KEY) as client:
        yield client


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["fake"]
    assert (await client.models.retrieve("fake")).owned_by == "rnn-engine"


async def test_every_answer_has_an_id_that_the_client_shows(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt="Hi", extra_headers={"X-Request-Id": "mine"})
    assert answer._request_id == "mine"
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.completions.create(model="fake", prompt="Hi", top_p=7)
    assert refusal.value.request_id
    assert refusal.value.request_id != "mine"


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hi"}], n=2, logprobs=True, top_logprobs=2, seed=1
    )
    assert [choice.message.content for choice in answer.choices] == ["Hi 20", "Hi 20"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[1].top_logprobs[0].token == "\x00"


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="fake",
        messages=[{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi 31"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.total_tokens == 31 + len(" Hi 31")


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt=["a", "bc"], echo=True, logprobs=1, max_tokens=0)
    assert [choice.text for choice in answer.choices] == ["a", "bc"]
    assert answer.choices[1].logprobs is not None
    assert answer.choices[1].logprobs.tokens == ["b", "c"]


async def test_completions_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(model="fake", prompt=[5, 6], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == " Hi 2"


async def test_many_clients_at_once(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    async def ask(number: int) -> str | None:
        content = "x" * number
        answer = await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": content}])
        return answer.choices[0].message.content

    answers = await asyncio.gather(*(ask(number) for number in range(1, 9)))
    assert answers == [f"Hi {18 + number}" for number in range(1, 9)]
    assert engine.most_active > 1


async def test_leaving_a_stream(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.hold = 2
    stream = await client.completions.create(model="fake", prompt="a", stream=True)
    await anext(aiter(stream))
    await stream.close()
    await asyncio.wait_for(engine.left.wait(), 60)


async def test_errors_are_the_clients_own(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="fake", prompt="a", max_tokens=-2)
    assert refused.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    engine.refuse = OverloadedError("full", 1.0)
    with pytest.raises(openai.RateLimitError):
        await client.completions.create(model="fake", prompt="a")


async def test_retries_when_the_queue_is_full(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.refuse = OverloadedError("full", 0.001)
    asyncio.get_running_loop().call_later(0.05, setattr, engine, "refuse", None)
    answer = await client.with_options(max_retries=1000).completions.create(model="fake", prompt="a")
    assert answer.choices[0].text == " Hi 1"


async def test_stream_that_fails(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.fail_at = 3
    stream = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="device was lost"):
        async for _ in stream:
            pass


async def test_a_conversation_that_is_kept(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    create = client.chat.completions.create
    first = await create(model="fake", messages=[{"role": "user", "content": "Hi"}], extra_body={"save_as": "talk"})
    assert first.model_extra is not None
    assert first.model_extra["saved_state"]["name"] == "talk"
    await create(model="fake", messages=[{"role": "user", "content": "Bye"}], extra_body={"state": "talk"})
    assert engine.detokenize(engine.requests[-1].prompt) == b"\n\nUser: Bye\n\nAssistant:"
    with pytest.raises(openai.NotFoundError, match="state 'poet' does not exist; there are: talk"):
        await create(model="fake", messages=[{"role": "user", "content": "Hi"}], extra_body={"state": "poet"})
