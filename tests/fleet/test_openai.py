"""The official client of OpenAI against two processes of the demo model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI, AsyncStream
from openai.types import Completion

from rnn_engine.cli.session import load_engine
from rnn_engine_server.apis.engine.states import StateEntries
from tests.support.demo_server import demo_choice
from tests.support.fleet import until
from tests.support.http import Client, client_over, engine_in, post

if TYPE_CHECKING:
    from tests.support.ray_fleet import RayFleets

CHOICE = demo_choice(2)
TALK = "User: My name is Ann.\n\nAssistant: Nice to meet you, Ann!"
GREEDY: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 24}


@pytest.fixture
async def server(ray_fleets: RayFleets) -> AsyncIterator[Client]:
    async with client_over(await ray_fleets(CHOICE)) as server:
        yield server


@pytest.fixture
async def openai(server: Client) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client


def client_of(server: Client) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="-", max_retries=0)


async def answer(client: AsyncOpenAI, question: str, **fields: object) -> str:
    whole = await client.chat.completions.create(
        messages=[{"role": "user", "content": question}], extra_body=fields, **GREEDY
    )
    return whole.choices[0].message.content or ""


async def test_streams_are_what_the_whole_answers_are(openai: AsyncOpenAI) -> None:
    async def streamed(question: str) -> str:
        stream = await openai.chat.completions.create(
            messages=[{"role": "user", "content": question}], stream=True, **GREEDY
        )
        return "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])

    questions = ["What is the capital of France?", "What is 3 + 4?", "Hello", "Spell the word cat."]
    whole = await asyncio.gather(*(answer(openai, question) for question in questions))
    assert await asyncio.gather(*map(streamed, questions)) == whole
    assert "Paris" in whole[0]


async def test_a_stream_that_is_closed_frees_the_slot_of_its_replica(server: Client, openai: AsyncOpenAI) -> None:
    fleet = engine_in(server)
    async with await endless(openai) as stream:
        await anext(aiter(stream))
        await until(lambda: len(fleet.slot_uses()) == 1)
    await until(lambda: len(fleet.slot_uses()) == 0)


async def test_a_state_of_one_replica_is_forked_on_the_other(
    server: Client, openai: AsyncOpenAI, ray_fleets: RayFleets
) -> None:
    """The same tokens come from the replica that made the state, from the other one, and from an engine alone."""
    question = "What is my name?"
    async with client_over(await load_engine(CHOICE)) as alone:
        await make_states(alone)
        async with client_of(alone) as client:
            expected = await answer(client, question, state="branch")
    first = await ray_fleets.counters(CHOICE)
    await make_states(server)
    second = await ray_fleets.counters(CHOICE)
    [maker] = [name for name in first if second[name].prefill_tokens > first[name].prefill_tokens]
    [other] = set(first) - {maker}
    assert await answer(openai, question, state="talk") == expected
    async with await endless(openai):  # there, so that the next request goes elsewhere
        assert await answer(openai, question, state="branch") == expected
    third = await ray_fleets.counters(CHOICE)
    assert third[other].generated_tokens > second[other].generated_tokens


async def test_a_batch_runs_on_all_replicas(openai: AsyncOpenAI, ray_fleets: RayFleets) -> None:
    bodies = [{"prompt": f"Count to {number}:", "max_tokens": 8, "temperature": 0} for number in range(12)]
    lines = [{"custom_id": body["prompt"], "method": "POST", "url": "/v1/completions", "body": body} for body in bodies]
    before = await ray_fleets.counters(CHOICE)
    file = await openai.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
    batch = await openai.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    while batch.status in ("validating", "in_progress", "finalizing"):
        await asyncio.sleep(0.05)
        batch = await openai.batches.retrieve(batch.id)
    after = await ray_fleets.counters(CHOICE)
    found = map(json.loads, (await openai.files.content(str(batch.output_file_id))).text.splitlines())
    assert {each["custom_id"] for each in found} == {line["custom_id"] for line in lines}
    for name, counters in after.items():
        assert counters.generated_tokens - before[name].generated_tokens > 8  # of more than one line


async def make_states(server: Client) -> None:
    response = await server.post("/v1/states", json={"name": "talk", "prompt": TALK})
    assert response.status == 200, await response.text()
    await post(server, "/v1/states/talk/fork", StateEntries, {"names": ["branch"]})


async def endless(client: AsyncOpenAI) -> AsyncStream[Completion]:
    return await client.completions.create(
        model="demo", prompt="a", max_tokens=60_000, stream=True, extra_body={"ignore_eos": True}
    )
