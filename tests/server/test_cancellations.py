"""Many of many parallel requests are cancelled: the others get all their tokens, and nothing is left behind.

The cases are those for which llama.cpp, vLLM and SGLang have tests: docs/reliability.md lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from aiohttp import ClientResponse, ClientSession, TCPConnector

from rnn_engine.engine import Engine
from rnn_engine.interface import EngineStats
from rnn_engine.loading.parts import assemble
from rnn_engine.types import F32
from rnn_engine_server.core.routing import LIFECYCLE
from rnn_engine_states.cache.browse import TreeQuery
from rnn_engine_states.cache.cache import make_cache
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, Tokens
from tests.support.gate import Gate
from tests.support.http import Body, Client, Through, client_over, error_of
from tools.live_server.asking import connection, encode_request

TOKENIZER = ByteTokenizer()
WAIT_SECONDS = 30.0  # until a test that waits in vain fails
PATH = "/v1/completions"
LONG = 10_000  # tokens


def endless(tokens: Tokens) -> F32:
    row = np.zeros(TOKENIZER.size, np.float32)
    row[ord("x") + 1] = 100.0
    return row


@dataclass
class Running:
    """A server over an engine whose steps can be held."""

    client: Client
    session: ClientSession  # without a bound on connections
    engine: Engine
    runner: FakeRunner
    gate: Gate
    num_places: int  # running and queued

    @property
    def url(self) -> str:
        return str(self.client.make_url("")).rstrip("/")

    @property
    def num_requests(self) -> int:
        """The number of requests in the engine, running and queued."""
        stats = self.engine.stats()
        return stats.active + stats.queued

    async def ask(self, max_tokens: int, **fields: object) -> int:
        """Send a request, and return the number of tokens of its whole answer."""
        response = await self.session.post(self.url + PATH, json=_body(max_tokens, **fields))
        answer: Body = await response.json()
        assert response.status == 200, answer
        return int(answer["usage"]["completion_tokens"])

    async def read(self, max_tokens: int, events: int) -> ClientResponse:
        """Open a stream and read its first `events` events."""
        response = await self.session.post(self.url + PATH, json=_body(max_tokens, stream=True))
        assert response.status == 200
        for _ in range(events):
            await response.content.readuntil(b"\n\n")
        return response

    async def check_idle(self) -> None:
        """Check that nothing is left of any request: no slot, place in the queue, lock in the cache or HTTP request."""
        lifecycle = self.client.app[LIFECYCLE]
        await reach(lambda: self.engine.stats() == EngineStats(0, 0) and lifecycle.active == 0)
        self.gate.open()
        kept = await self.engine.cache_tree(TreeQuery(limit=1000, by_hits=True))
        assert not any(node.position.in_use for node in kept.nodes)
        answers = await asyncio.gather(*(self.ask(3) for _ in range(self.num_places)))
        assert answers == [3] * self.num_places


def _body(max_tokens: int, **fields: object) -> Body:
    return {"prompt": "Hi", "temperature": 0, "max_tokens": max_tokens, **fields}


async def reach(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0)


async def end(calls: list[asyncio.Task[int]]) -> None:
    """Cancel calls, as clients do at a timeout."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


@asynccontextmanager
async def running(
    through: Through, num_slots: int = 4, max_queued: int = 8, *, held: bool = False
) -> AsyncIterator[Running]:
    gate = Gate(is_open=not held)
    runner = FakeRunner(endless, num_slots=num_slots, on_step=gate)
    cache = make_cache(runner.shape, "a model", runner)
    parts = assemble(runner, TOKENIZER, model="fake", device="none", weights="f32", cache=cache)
    engine = Engine(parts, max_queued=max_queued)
    async with (
        client_over(await through(engine, max_queued=max_queued)) as client,
        ClientSession(connector=TCPConnector(limit=0)) as session,
    ):
        try:
            yield Running(client, session, engine, runner, gate, num_slots + max_queued)
        finally:
            gate.open()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_its_client_gives_up_frees_the_only_slot(through: Through, stream: bool) -> None:
    async with running(through, num_slots=1, max_queued=2, held=True) as server:
        call = asyncio.create_task(server.ask(LONG, stream=stream))
        await reach(lambda: server.engine.stats().active == 1)
        await end([call])
        await server.check_idle()


@pytest.mark.parametrize(("slots", "requests"), [(1, 3), (2, 2), (2, 4), (4, 2), (4, 6)])
async def test_requests_beyond_the_slots_wait_for_them(through: Through, slots: int, requests: int) -> None:
    async with running(through, slots, held=True) as server:
        calls = [asyncio.create_task(server.ask(20)) for _ in range(requests)]
        busy = min(slots, requests)
        await reach(lambda: server.num_requests == requests)
        server.gate.let(2)
        await reach(lambda: server.engine.stats() == EngineStats(busy, requests - busy))
        server.gate.open()
        assert await asyncio.gather(*calls) == [20] * requests
        assert max(len(batch) for batch in server.runner.batches) == busy
        await server.check_idle()


async def test_every_tenth_of_a_hundred_is_cancelled_and_the_others_get_all_their_tokens(through: Through) -> None:
    async with running(through, max_queued=120) as server:
        long = range(1, 100, 10)
        calls = [
            asyncio.create_task(server.ask(LONG if number in long else 30, n=3 if number % 15 == 1 else 1))
            for number in range(100)
        ]
        await reach(lambda: server.engine.stats().active == 4)
        await end([calls[number] for number in long])
        others = [await call for number, call in enumerate(calls) if number not in long]
        assert sorted(set(others)) == [30, 90]
        assert others.count(90) == len(set(range(1, 100, 15)) - set(long))
        await server.check_idle()


async def test_a_hundred_streams_are_left_midway(through: Through) -> None:
    async with running(through, max_queued=96) as server:
        streams = [asyncio.create_task(server.read(LONG, events=2)) for _ in range(100)]
        for stream in asyncio.as_completed(streams):
            (await stream).close()
        await server.check_idle()


async def test_two_hundred_long_requests_are_cancelled_within_one_step(through: Through) -> None:
    async with running(through, num_slots=8, max_queued=192, held=True) as server:
        calls = [asyncio.create_task(server.ask(LONG)) for _ in range(200)]
        await reach(lambda: server.num_requests == 200)
        server.gate.let(9)
        await reach(lambda: len(server.runner.batches) == 10)
        await end(calls)
        await reach(lambda: server.engine.stats().queued == 0 and server.client.app[LIFECYCLE].active == 0)
        steps = len(server.runner.batches)
        await server.check_idle()
        after = server.runner.batches[steps:]
        assert sum(len(run.tokens) for batch in after for run in batch) <= 3 * server.num_places + len("Hi")


async def test_a_client_program_that_dies_leaves_nothing(through: Through) -> None:
    async with running(through, max_queued=12, held=True) as server:
        connections = [connection(server.url) for _ in range(16)]
        for opened in connections:
            _, writer = await opened.__aenter__()
            writer.write(encode_request("POST", PATH, _body(LONG)))
        await reach(lambda: server.num_requests == 16)
        server.gate.let(5)
        for opened in connections:
            await opened.__aexit__(None, None, None)  # resets the connection
        server.gate.open()
        await server.check_idle()


async def test_a_queue_of_one_takes_one_and_refuses_the_others(through: Through) -> None:
    async with running(through, num_slots=1, max_queued=1, held=True) as server:
        taken = [asyncio.create_task(server.ask(3)) for _ in range(2)]
        await reach(lambda: server.num_requests == 2)
        for _ in range(8):
            response = await server.session.post(server.url + PATH, json=_body(3))
            assert (await error_of(response, 429))["code"] == "overloaded"
            assert int(response.headers["Retry-After"]) >= 1
        server.gate.open()
        assert await asyncio.gather(*taken) == [3, 3]
        await server.check_idle()


async def test_an_engine_that_closes_ends_what_runs_and_what_waits(through: Through) -> None:
    async with running(through, num_slots=8, max_queued=24) as server:
        streams = [await server.read(LONG, events=1) for _ in range(8)]
        waiting = [asyncio.create_task(server.session.post(server.url + PATH, json=_body(LONG))) for _ in range(24)]
        await reach(lambda: server.engine.stats() == EngineStats(8, 24))
        await server.engine.close()
        for stream in streams:
            *_, last = (await stream.text()).strip().split("\n\n")
            assert '"code":"closing"' in last
        for response in await asyncio.gather(*waiting):
            assert (await error_of(response, 503))["code"] == "closing"
        assert server.client.app[LIFECYCLE].active == 0
