"""Fields of vLLM that completions and chats have: log-probabilities of prompts, tokens that alone are allowed, echo."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import MAX_LOGPROBS, assemble
from rnn_engine_server.apis.openai.schemas import ChatCompletion, ChatCompletionChunk, Completion
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, table_logits
from tests.support.http import Body, Client, Through, client_over, error_of, post, post_stream

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI: Body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1}
BEGUN: Body = {"messages": [*HI["messages"], {"role": "assistant", "content": "Once"}], "max_tokens": 4, "seed": 1}


@pytest.fixture
async def client(through: Through) -> AsyncIterator[Client]:
    engine = Engine(
        assemble(FakeRunner(table_logits(257)), ByteTokenizer(), model="fake", device="none", weights="f32")
    )
    async with client_over(await through(engine)) as client:
        yield client


async def completion(client: Client, **fields: object) -> Body:
    body = {"prompt": [3, 5, 7, 9], "max_tokens": 2, "seed": 1, **fields}
    choice: Body = (await post(client, COMPLETIONS, Completion, body))["choices"][0]
    return choice


async def test_a_prompts_log_probabilities_are_those_of_echo(client: Client) -> None:
    echoed = (await completion(client, echo=True, logprobs=2))["logprobs"]
    found = await completion(client, prompt_logprobs=2)
    assert found["logprobs"] is None
    first, *others = found["prompt_logprobs"]
    assert first is None
    for token, place, logprob, top in zip(
        (5, 7, 9), others, echoed["token_logprobs"][1:4], echoed["top_logprobs"][1:4], strict=True
    ):
        assert place[str(token)]["logprob"] == pytest.approx(logprob)
        ranked = sorted((entry["rank"], entry["logprob"]) for entry in place.values() if entry["rank"] is not None)
        assert [rank for rank, _ in ranked] == [1, 2]
        assert [logprob for _, logprob in ranked] == pytest.approx(sorted(top.values(), reverse=True)[:2])
        assert len(place) == 2 + (place[str(token)]["rank"] is None)


async def test_a_prompt_may_have_more_alternatives_than_its_answer(client: Client) -> None:
    found = await completion(client, prompt_logprobs=5, logprobs=1)
    assert {len(place) for place in found["prompt_logprobs"][1:]} <= {5, 6}
    assert {len(top) for top in found["logprobs"]["top_logprobs"]} <= {1, 2}
    assert len(found["logprobs"]["tokens"]) == 2  # of the answer alone
    alone = await completion(client, logprobs=1)
    assert found["text"] == alone["text"]
    assert found["logprobs"]["token_logprobs"] == pytest.approx(alone["logprobs"]["token_logprobs"])


async def test_a_chat_has_its_prompts_log_probabilities_beside_the_choices(client: Client) -> None:
    found = await post(client, CHAT, ChatCompletion, {**HI, "prompt_logprobs": 0, "return_token_ids": True, "n": 2})
    places = found["prompt_logprobs"]
    tokens = found["prompt_token_ids"]
    assert places[0] is None
    assert [list(place) for place in places[1:]] == [[str(token)] for token in tokens[1:]]


async def test_minus_one_asks_for_as_many_alternatives_as_there_may_be(client: Client) -> None:
    found = await completion(client, logprobs=-1, prompt_logprobs=-1)
    assert {len(top) for top in found["logprobs"]["top_logprobs"]} <= {MAX_LOGPROBS, MAX_LOGPROBS + 1}
    assert {len(place) for place in found["prompt_logprobs"][1:]} <= {MAX_LOGPROBS, MAX_LOGPROBS + 1}
    chat = await post(client, CHAT, ChatCompletion, {**HI, "logprobs": True, "top_logprobs": -1})
    [choice] = chat["choices"]
    assert {len(entry["top_logprobs"]) for entry in choice["logprobs"]["content"]} == {MAX_LOGPROBS}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_wrong_values_are_refused(client: Client, path: str) -> None:
    body = {"prompt": "Hi"} if path == COMPLETIONS else HI
    for field, value in (
        ("prompt_logprobs", -2),
        ("prompt_logprobs", MAX_LOGPROBS + 1),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", ["a"]),
        ("allowed_token_ids", [1 << 20]),
        ("truncate_prompt_tokens", 0),
    ):
        error = await error_of(await client.post(path, json={**body, field: value}), 400)
        assert field in (error["param"], error["message"].split()[0]) or (field, error["param"]) == (
            "prompt_logprobs",
            "logprobs",
        )
    streamed = {**body, "prompt_logprobs": 1, "stream": True}
    assert (await error_of(await client.post(path, json=streamed), 400))["param"] == "prompt_logprobs"


@pytest.mark.parametrize("n", [1, 3])
async def test_only_allowed_tokens_are_drawn(client: Client, n: int) -> None:
    body = {"prompt": "Hi", "allowed_token_ids": [66, 70, 66], "max_tokens": 5, "n": n, "seed": 1, "temperature": 1}
    found = await post(client, COMPLETIONS, Completion, {**body, "return_token_ids": True})
    for choice in found["choices"]:
        assert choice["token_ids"]
        assert set(choice["token_ids"]) <= {66, 70}


async def test_an_answer_that_continues_a_message_may_begin_with_it(client: Client) -> None:
    [plain] = (await post(client, CHAT, ChatCompletion, BEGUN))["choices"]
    [whole] = (await post(client, CHAT, ChatCompletion, {**BEGUN, "echo": True}))["choices"]
    assert whole["message"]["content"] == "Once" + plain["message"]["content"]
    chunks = await post_stream(client, CHAT, ChatCompletionChunk, {**BEGUN, "echo": True})
    parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(parts) == whole["message"]["content"]
    [other] = (await post(client, CHAT, ChatCompletion, {**HI, "echo": True}))["choices"]
    assert other["message"] == (await post(client, CHAT, ChatCompletion, HI))["choices"][0]["message"]


async def test_a_chats_prompt_may_be_cut_to_its_last_tokens(client: Client) -> None:
    whole = (await post(client, CHAT, ChatCompletion, {**HI, "return_token_ids": True}))["prompt_token_ids"]
    for most, expected in ((5, whole[-5:]), (len(whole) + 3, whole), (-1, whole)):
        body = {**HI, "return_token_ids": True, "truncate_prompt_tokens": most}
        assert (await post(client, CHAT, ChatCompletion, body))["prompt_token_ids"] == expected
