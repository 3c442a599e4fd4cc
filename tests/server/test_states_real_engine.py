"""Named states over the real engine, on the CPU, with the demo model: a kept conversation goes on as one
that never stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from rnn_engine.demo import pirate_state_path
from rnn_engine.loading.settings import StateFile, StateSettings
from rnn_engine_server.apis.ai00.states import StateList
from rnn_engine_server.apis.engine.states import AdvancedState, CreatedState, StateEntries
from rnn_engine_server.apis.openai.schemas import ChatCompletion, Completion
from rnn_engine_states.cache.browse import TreeQuery
from tests.support.demo_server import demo_choice
from tests.support.http import Client, Load, client_over, engine_in, post

CHAT = "/v1/chat/completions"
TALK = ("What is the capital of France?", "What is 3 + 4?", "Spell the word cat.")


async def start(load: Load, folder: Path) -> TestClient[Any, Any]:
    settings = StateSettings([StateFile(pirate_state_path(), "pirate")], folder=folder)
    engine = await load(demo_choice(3, states=settings))
    return client_over(engine)


@pytest.fixture
async def client(load: Load, tmp_path: Path) -> AsyncIterator[Client]:
    async with await start(load, tmp_path) as client:
        yield client


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def say(client: Client, *messages: dict[str, str], **fields: object) -> str:
    body = {"messages": list(messages), "temperature": 0, "max_tokens": 40, **fields}
    answer: str = (await post(client, CHAT, ChatCompletion, body))["choices"][0]["message"]["content"]
    return answer


async def test_a_kept_conversation_goes_on_as_one_that_never_stopped(client: Client) -> None:
    messages: list[dict[str, str]] = []
    whole = []
    for question in TALK:
        messages.append(user(question))
        whole.append(await say(client, *messages, state="pirate"))
        messages.append(assistant(whole[-1]))
    kept = [await say(client, user(TALK[0]), state="pirate", save_as="talk")]
    kept += [await say(client, user(question), state="talk", save_as="talk") for question in TALK[1:]]
    assert kept == whole
    assert "Arr" in whole[0]
    assert "Arr" not in await say(client, user(TALK[0]))


async def test_forks_and_files_of_a_conversation_go_on_alike(client: Client) -> None:
    await say(client, user(TALK[0]), state="pirate", save_as="talk")
    expected = await say(client, user(TALK[1]), state="talk")
    await post(client, "/v1/states/talk/fork", StateEntries, {"names": ["a", "b"]})
    for form in ("full", "prefab"):
        data = await (await client.get(f"/v1/states/talk/export?form={form}")).read()
        assert (await client.put(f"/v1/states/{form}", data=data)).status == 200
    answers = await asyncio.gather(*(say(client, user(TALK[1]), state=name) for name in ("a", "b", "full", "prefab")))
    assert set(answers) == {expected}


async def test_a_state_that_is_saved_in_steps_scores_as_one_run_does(client: Client) -> None:
    text = "User: What is the capital of France?\n\nAssistant: The capital of France is Paris."
    tokens = (await (await client.post("/tokenize", json={"content": text})).json())["tokens"]
    scoring = {"echo": True, "logprobs": 1, "max_tokens": 0}
    whole = await scores(client, {**scoring, "prompt": tokens, "state": "pirate"})
    await post(client, "/v1/states", CreatedState, {"name": "s", "prompt": tokens[:4], "state": "pirate"})
    scored: list[float] = []
    for first in range(4, len(tokens), 5):
        part = {**scoring, "prompt": tokens[first : first + 5], "state": "s", "save_as": "s"}
        scored += await scores(client, part)
    assert scored == pytest.approx(whole[4:], abs=1e-3)


async def scores(client: Client, body: dict[str, Any]) -> list[float]:
    logprobs = (await post(client, "/v1/completions", Completion, body))["choices"][0]["logprobs"]
    found: list[float] = logprobs["token_logprobs"]
    return found


async def test_an_advance_in_steps_reaches_the_state_of_one_run(client: Client) -> None:
    tokens = engine_in(client).tokenize("User: What is the capital of France?\n\nAssistant:")
    for name in ("whole", "steps"):
        await post(client, "/v1/states", CreatedState, {"name": name, "prompt": tokens[:4], "state": "pirate"})
    await post(client, "/v1/states/whole/advance", AdvancedState, {"input": tokens[4:]})
    for first in range(4, len(tokens), 5):
        await post(client, "/v1/states/steps/advance", AdvancedState, {"input": tokens[first : first + 5]})
    ask = {"prompt": " ", "max_tokens": 6, "temperature": 0}
    texts = [
        (await post(client, "/v1/completions", Completion, {**ask, "state": name}))["choices"][0]["text"]
        for name in ("whole", "steps")
    ]
    assert texts[0] == texts[1] != ""


async def test_what_is_removed_is_dropped_from_the_cache(client: Client) -> None:
    engine = engine_in(client)

    async def roots() -> set[str]:
        return {node.position.root for node in (await engine.cache_tree(TreeQuery(limit=1000, by_hits=True))).nodes}

    await say(client, user(TALK[0]), state="pirate", save_as="talk")
    await say(client, user(TALK[1]), state="talk")
    await post(client, "/v1/states/talk/fork", StateEntries, {"names": ["fork"]})
    root = (await engine.states.get("talk")).frozen.digest
    assert root in await roots()
    await client.delete("/v1/states/talk")
    assert root in await roots()
    await client.delete("/v1/states/fork")
    assert root not in await roots()
    assert (await engine.states.get("pirate")).frozen.digest in await roots()


async def test_a_persistent_conversation_goes_on_after_a_restart(load: Load, tmp_path: Path) -> None:
    async with await start(load, tmp_path) as client:
        await say(client, user(TALK[0]), state="pirate", save_as={"name": "talk", "persistent": True})
        expected = await say(client, user(TALK[1]), state="talk")
    async with await start(load, tmp_path) as client:
        assert await say(client, user(TALK[1]), state="talk") == expected


async def test_what_follows_equal_states_is_kept_together_however_they_are_sent(client: Client) -> None:
    asked = {"input": "User: Hi", "encoding_format": "base64"}
    [whole] = (await post(client, "/api/oai/states", StateList, asked))["data"]
    inline = {"data": whole["data"], "shape": whole["shape"]}
    body = {"messages": [user(TALK[0])], "state": inline, "max_tokens": 1}
    first, second = [(await post(client, CHAT, ChatCompletion, body))["usage"] for _ in range(2)]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == second["prompt_tokens"]
