"""Two servers over one store: a client's state from one goes on at the other, with the same tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from rnn_engine.demo import pirate_state_path
from rnn_engine.loading.settings import StateFile, StateSettings
from rnn_engine_server.apis.engine.states import StateEntries
from rnn_engine_server.apis.openai.schemas import ChatCompletion
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.shared.config import StoreConfig, StoreUrl
from tests.support.demo_server import demo_choice
from tests.support.http import Client, Load, client_over, post
from tests.support.store_server import StoreServer

CHAT = "/v1/chat/completions"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreServer]:
    server = StoreServer(tmp_path)
    yield server
    server.kill()


@asynccontextmanager
async def serving(load: Load, store: StoreServer) -> AsyncIterator[Client]:
    cache = CacheConfig(store=StoreConfig(StoreUrl.parse(store.url), timeout=30.0, write_after=0.0))
    states = StateSettings([StateFile(pirate_state_path(), "pirate")])
    engine = await load(demo_choice(2, cache=cache, states=states))
    async with client_over(engine) as client:
        yield client


async def say(client: Client, text: str, **fields: object) -> str:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24, **fields}
    answer: str = (await post(client, CHAT, ChatCompletion, body))["choices"][0]["message"]["content"]
    return answer


async def test_a_conversation_goes_on_at_another_server(load: Load, store: StoreServer) -> None:
    async with serving(load, store) as one, serving(load, store) as other:
        await say(one, "What is the capital of France?", state="pirate", save_as="talk")
        await post(other, "/v1/states/talk/fork", StateEntries, {"names": ["branch"]})
        expected = await say(one, "What is 3 + 4?", state="talk")
        assert await say(other, "What is 3 + 4?", state="talk") == expected
        assert await say(one, "What is 3 + 4?", state="branch") == expected
        async with AsyncOpenAI(base_url=str(other.make_url("/v1")), api_key="none") as openai:
            stream = await openai.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": "What is 3 + 4?"}],
                temperature=0,
                max_tokens=24,
                stream=True,
                extra_body={"state": "branch"},
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(pieces) == expected
        assert (await other.delete("/v1/states/talk")).status == 200
        gone = await one.get("/v1/states/talk")
        assert gone.status == 404
        assert "it was removed" in await gone.text()


async def test_a_name_that_is_damaged_in_the_store_is_as_if_it_were_not_there(load: Load, store: StoreServer) -> None:
    async with serving(load, store) as one, serving(load, store) as other:
        await say(one, "What is the capital of France?", state="pirate", save_as="talk")
        await say(one, "What is the capital of France?", state="pirate", save_as="walk")
        [entries] = store.keys("*:names:entries")
        with store.client() as direct:
            texts: Any = direct.hgetall(entries.decode())
            [key] = [key for key, text in texts.items() if b'"talk"' in text]
            direct.hset(entries.decode(), key, texts[key].replace(b'"talk"', b'"t\xfflk"'))
        body = {"messages": [{"role": "user", "content": "What is 3 + 4?"}], "state": "talk"}
        assert (await other.post(CHAT, json=body)).status == 404
        assert (await other.get("/v1/states/talk")).status == 404
        assert await say(other, "What is 3 + 4?", state="walk") == await say(one, "What is 3 + 4?", state="walk")
        metrics = await (await other.get("/metrics")).text()
        [line] = [line for line in metrics.splitlines() if line.startswith("rnn_engine_store_unreadable_total")]
        assert line.endswith(" 1.0")
        await say(other, "What is the capital of France?", state="pirate", save_as="talk")
        assert (await one.get("/v1/states/talk")).status == 200


async def test_while_the_store_is_gone_its_states_are_refused_and_all_else_serves(
    load: Load, store: StoreServer
) -> None:
    async with serving(load, store) as client:
        await say(client, "What is the capital of France?", state="pirate", save_as="talk")
        expected = await say(client, "What is 3 + 4?", state="pirate")
        store.kill()
        assert await say(client, "What is 3 + 4?", state="pirate") == expected
        body = {"messages": [{"role": "user", "content": "Hello"}], "state": "talk"}
        for answer in (await client.post(CHAT, json=body), await client.get("/v1/states")):
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) >= 1
            assert "the store" in await answer.text()
        assert "rnn_engine_store_operations_total" in await (await client.get("/metrics")).text()
