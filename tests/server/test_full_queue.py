"""Calls of several engine requests to an engine with a short queue are refused at the start or answered whole."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import OverloadedError
from rnn_engine.loading.parts import assemble
from rnn_engine.requests import GenerateRequest
from rnn_engine.types import Batch
from rnn_engine_server.apis.openai.schemas import Completion
from rnn_engine_server.core.routing import LIFECYCLE
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_engine import FakeEngine
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.http import Body, Client, Serve, Through, client_over, error_of, events, post

TOKENIZER = ByteTokenizer()
COUNT = 20
PATIENCE = 30.0  # seconds until a test that waits in vain fails
FIELDS: Body = {"max_tokens": 5, "seed": 1, "logit_bias": {"0": -1000}}


@dataclass
class Busy:
    """A server whose engine has 2 slots and a queue of 1, and runs no step until `go` is set."""

    client: Client
    engine: Engine
    runner: FakeRunner
    go: threading.Event

    @property
    def requests(self) -> int:
        """The number of HTTP requests in progress."""
        return self.client.app[LIFECYCLE].active

    @property
    def in_engine(self) -> int:
        """The number of requests that run or are queued in the engine."""
        stats = self.engine.stats()
        return stats.active + stats.queued

    @property
    def tokens_run(self) -> set[int]:
        return {token for batch in self.runner.batches for run in batch for token in run.tokens}


@pytest.fixture
async def busy(through: Through) -> AsyncIterator[Busy]:
    go = threading.Event()

    def wait(batch: Batch) -> None:
        go.wait()

    runner = FakeRunner(random_logits(TOKENIZER.size), num_slots=2, on_step=wait)
    engine = Engine(assemble(runner, TOKENIZER, model="fake", device="none", weights="f32"), max_queued=1)
    async with client_over(await through(engine, max_queued=1)) as client:
        yield Busy(client, engine, runner, go)
        go.set()


async def reach(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)  # and leave the processor to the engine meanwhile


async def fill(busy: Busy) -> asyncio.Task[list[int]]:
    """Take all places in the engine by two calls: the first has two, the second has one and waits for another."""
    calls = asyncio.create_task(ask_twice(busy.client))
    await reach(lambda: busy.requests == 2 and busy.in_engine == 3)
    return calls


async def ask_twice(client: Client) -> list[int]:
    return list(await asyncio.gather(ask_completion(client, "a"), ask_completion(client, "a")))


async def ask_completion(client: Client, prompt: str) -> int:
    """Ask for a completion, and return the number of its whole choices."""
    response = await client.post("/v1/completions", json={**FIELDS, "prompt": [prompt] * COUNT})
    answer = await response.json()
    assert response.status == 200, answer
    return len([choice for choice in answer["choices"] if choice["finish_reason"] == "length"])


async def ask_copies(client: Client, text: str) -> int:
    body = {**FIELDS, "messages": [{"role": "user", "content": text}], "n": COUNT}
    response = await client.post("/v1/chat/completions", json=body)
    answer = await response.json()
    assert response.status == 200, answer
    return len([choice for choice in answer["choices"] if choice["finish_reason"] == "length"])


async def ask_stream(client: Client, prompt: str) -> int:
    response = await client.post("/v1/completions", json={**FIELDS, "prompt": prompt, "n": COUNT, "stream": True})
    assert response.status == 200, await response.text()
    choices = [choice for event in events(await response.text()) for choice in event["choices"]]
    return len([choice for choice in choices if choice["finish_reason"] == "length"])


async def ask_choices(client: Client, context: str) -> int:
    choices = [chr(ord("a") + number) for number in range(COUNT)]
    response = await client.post("/v1/choices", json={"input": context, "choices": choices, "calibrate": True})
    answer = await response.json()
    assert response.status == 200, answer
    return len(answer["data"])


async def ask_best(client: Client, text: str) -> int:
    body = {"inputs": text, "parameters": {"best_of": COUNT, "max_new_tokens": 5, "temperature": 1.0, "details": True}}
    response = await client.post("/generate", json=body)
    answer = await response.json()
    assert response.status == 200, answer
    return 1 + len(answer["details"]["best_of_sequences"])


async def ask_tokens(client: Client, prompt: str) -> int:
    response = await client.post("/completion", json={"prompt": [prompt] * COUNT, "n_predict": 5, "ignore_eos": True})
    answer = await response.json()
    assert response.status == 200, answer
    return len([one for one in answer if one["stop_type"] == "limit"])


async def ask_order(client: Client, text: str) -> int:
    response = await client.post("/v1/rerank", json={"query": text, "documents": [text] * COUNT})
    answer = await response.json()
    assert response.status == 200, answer
    return len(answer["results"])


@pytest.mark.parametrize("ask", [ask_completion, ask_copies, ask_stream, ask_choices, ask_best, ask_tokens, ask_order])
async def test_call_that_has_begun_waits_for_room(busy: Busy, ask: Callable[[Client, str], Awaitable[int]]) -> None:
    """The first call leaves room for one request of the second, which has twenty."""
    first = asyncio.create_task(ask_completion(busy.client, "a"))
    await reach(lambda: busy.in_engine == 2)
    second = asyncio.ensure_future(ask(busy.client, "text"))
    await reach(lambda: busy.requests == 2 and busy.in_engine == 3)
    busy.go.set()
    assert (await first, await second) == (COUNT, COUNT)
    assert busy.in_engine == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "bb"}),
        ("/v1/completions", {"prompt": ["bb", "b"], "n": COUNT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "b"}], "n": 2}),
    ],
)
async def test_call_that_finds_the_queue_full_is_refused_and_runs_nothing(
    busy: Busy, path: str, body: Body, stream: bool
) -> None:
    filled = await fill(busy)
    error = await error_of(await busy.client.post(path, json={**body, "stream": stream}), 429)
    assert error["code"] == "overloaded"
    busy.go.set()
    assert await filled == [COUNT, COUNT]
    assert ord("b") + 1 not in busy.tokens_run


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/choices", {"input": "b", "choices": ["b", "bb"]}),
        ("/v1/embeddings", {"input": ["b", "bb"]}),
        ("/v1/states", {"name": "s", "prompt": "b"}),
    ],
)
async def test_scores_vectors_and_states_are_refused_at_the_beginning(busy: Busy, path: str, body: Body) -> None:
    filled = await fill(busy)
    await error_of(await busy.client.post(path, json=body), 429)
    busy.go.set()
    assert await filled == [COUNT, COUNT]
    assert ord("b") + 1 not in busy.tokens_run


async def test_client_that_leaves_while_its_requests_wait_for_room_leaves_nothing_behind(busy: Busy) -> None:
    filled = await fill(busy)
    filled.cancel()
    await asyncio.gather(filled, return_exceptions=True)
    busy.go.set()
    await reach(lambda: busy.requests == 0)
    assert busy.in_engine == 0
    assert await ask_completion(busy.client, "c") == COUNT


async def test_engine_that_closes_ends_calls_that_wait_for_room(busy: Busy) -> None:
    body = {**FIELDS, "prompt": ["a"] * COUNT, "max_tokens": 10**4}
    calls = [asyncio.create_task(busy.client.post("/v1/completions", json=body)) for _ in range(2)]
    await reach(lambda: busy.requests == 2 and busy.in_engine == 3)
    closing = asyncio.create_task(busy.engine.close())
    await asyncio.sleep(0)
    busy.go.set()
    await closing
    assert [json.loads(await (await call).text())["error"]["code"] for call in calls] == ["closing"] * 2


async def test_end_of_an_answer_is_saved_though_the_queue_is_full_by_then(serve: Serve) -> None:
    """The last token holds the end of the text and the stop. A second request runs this end of the text."""
    engine = FakeEngine(unrun=1)

    def reply(request: GenerateRequest) -> str:
        engine.refuse = OverloadedError("full", 1.0)
        return "Yes!\n\n"

    engine.reply = reply
    body = {"prompt": "a", "stop": "\n\n", "save_as": "end"}
    answer = await post(await serve(engine), "/v1/completions", Completion, body)
    assert answer["saved_state"]["num_tokens"] == len("aYes!")
