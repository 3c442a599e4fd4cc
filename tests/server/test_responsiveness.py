"""The event loop answers other requests while a long one is prepared or answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve

LONG = "a" * 10_000
TOKENS = [98] * 10_000


class BlockingEngine(FakeEngine):
    """An engine that blocks when it tokenizes a long text or detokenizes several tokens, until `open` is set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reached = threading.Event()
        self.open = threading.Event()

    def tokenize(self, text: str) -> list[int]:
        if len(text) >= len(LONG):
            self._block()
        return super().tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        if len(tokens) > 1:
            self._block()
        return super().detokenize(tokens)

    def _block(self) -> None:
        self.reached.set()
        assert self.open.wait(60), "nothing else ran meanwhile"


LONG_REQUESTS: list[tuple[str, Body]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 1}),
    ("/v1/completions", {"prompt": TOKENS, "echo": True, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {LONG: 1}, "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logit_bias": {LONG: 1}}),
    ("/v1/choices", {"input": LONG, "choices": ["a"]}),
    ("/v1/choices", {"choices": [TOKENS]}),
    ("/v1/embeddings", {"input": LONG}),
    ("/v1/states", {"name": "s", "prompt": LONG}),
    ("/tokenize", {"content": LONG}),
    ("/detokenize", {"tokens": TOKENS}),
]


@pytest.mark.parametrize(("path", "body"), LONG_REQUESTS)
async def test_others_are_answered_while_a_long_request_is_prepared(serve: Serve, path: str, body: Body) -> None:
    engine = BlockingEngine()
    client = await serve(engine)
    call = asyncio.create_task(client.post(path, json=body))
    await asyncio.to_thread(engine.reached.wait, 60)
    assert (await client.get("/health")).status == 200
    assert (await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})).status == 200
    assert not call.done()
    engine.open.set()
    response = await call
    assert response.status == 200, await response.text()


async def test_advancing_by_a_long_text_keeps_nobody_waiting(serve: Serve) -> None:
    engine = BlockingEngine()
    client = await serve(engine)
    assert (await client.post("/v1/states", json={"name": "s", "prompt": "a"})).status == 200
    call = asyncio.create_task(client.post("/v1/states/s/advance", json={"input": LONG}))
    await asyncio.to_thread(engine.reached.wait, 60)
    assert (await client.get("/health")).status == 200
    assert not call.done()
    engine.open.set()
    assert (await call).status == 200


class CountingEngine(FakeEngine):
    """An engine that records the texts that it tokenizes, and counts its calls to detokenize."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts: list[str] = []
        self.num_detokenized = 0

    def tokenize(self, text: str) -> list[int]:
        self.texts.append(text)
        return super().tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        self.num_detokenized += 1
        return super().detokenize(tokens)


async def test_texts_of_biases_are_tokenized_once_for_all_prompts(serve: Serve) -> None:
    engine = CountingEngine()
    body = {"prompt": ["a", "b", "c"], "n": 2, "logit_bias": {"xy": 1}, "max_tokens": 1}
    assert (await (await serve(engine)).post("/v1/completions", json=body)).status == 200
    assert engine.texts.count("xy") == 1
    assert [request.sampling.logit_bias for request in engine.requests] == [engine.requests[0].sampling.logit_bias] * 6


async def test_the_pieces_of_many_tokens_are_made_once_each(serve: Serve) -> None:
    engine = CountingEngine()
    body = {"content": "ab" * 500, "with_pieces": True, "return_token_strs": True}
    answer = await (await (await serve(engine)).post("/tokenize", json=body)).json()
    assert answer["tokens"] == [{"id": 98, "piece": "a"}, {"id": 99, "piece": "b"}] * 500
    assert answer["token_strs"] == ["a", "b"] * 500
    assert engine.num_detokenized < 10


async def test_long_answers_are_the_same_as_short_ones(serve: Serve) -> None:
    """Long answers are encoded in pieces."""
    client = await serve(FakeEngine())
    for count in (10, 1024, 1025, 5000):
        answer = await (await client.post("/tokenize", json={"content": "a" * count})).json()
        assert answer == {"tokens": [98] * count, "count": count}
        body = {"prompt": [98] * count, "echo": True, "logprobs": 1, "max_tokens": 1}
        response = await client.post("/v1/completions", json=body)
        assert response.content_type == "application/json"
        [choice] = (await response.json())["choices"]
        assert choice["logprobs"]["tokens"] == ["a"] * count + [" "]
