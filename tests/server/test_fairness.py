"""Clients that share a server: a client that fills its part of the queue leaves room for the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import assemble
from rnn_engine.types import Batch
from rnn_engine_server.auth.admission import network_of
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.routing import LIFECYCLE
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.http import Body, Client, Through, client_over

TOKENIZER = ByteTokenizer()
KEYS = tuple(ApiKey.of(f"key-{name}", name) for name in ("loud", "quiet"))
LONG: Body = {"prompt": "a", "max_tokens": 5000, "logit_bias": {"0": -1000}}
SHORT: Body = {"prompt": "b", "max_tokens": 5, "logit_bias": {"0": -1000}}


@dataclass
class Shared:
    """A server whose engine has 2 slots and a queue of 6, and runs no step until `go` is set."""

    client: Client
    go: threading.Event

    async def ask(self, key: str, body: Body) -> tuple[int, Mapping[str, object]]:
        headers = {"Authorization": f"Bearer key-{key}"}
        async with self.client.post("/v1/completions", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def fill(self, key: str) -> list[asyncio.Task[tuple[int, Mapping[str, object]]]]:
        """Send more long requests than there are places, and return the tasks of those that have one."""
        calls = [asyncio.create_task(self.ask(key, LONG)) for _ in range(12)]
        async with asyncio.timeout(30.0):
            while sum(call.done() for call in calls) < 4:
                await asyncio.sleep(0)
        assert {call.result()[0] for call in calls if call.done()} == {429}
        return [call for call in calls if not call.done()]

    async def end(self, calls: list[asyncio.Task[tuple[int, Mapping[str, object]]]]) -> None:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self.go.set()
        async with asyncio.timeout(30.0):
            while self.client.app[LIFECYCLE].active:
                await asyncio.sleep(0)


@pytest.fixture
async def shared(through: Through) -> AsyncIterator[Shared]:
    go = threading.Event()

    def wait(batch: Batch) -> None:
        go.wait()

    runner = FakeRunner(random_logits(TOKENIZER.size), num_slots=2, on_step=wait)
    engine = Engine(assemble(runner, TOKENIZER, model="fake", device="none", weights="f32"), max_queued=6)
    settings = ServerSettings(auth=AuthSettings(KEYS))
    async with client_over(await through(engine, max_queued=6), settings) as client:
        yield Shared(client, go)
        go.set()


async def test_key_that_fills_the_queue_keeps_no_other_out(shared: Shared) -> None:
    running = await shared.fill("loud")
    quiet = asyncio.create_task(shared.ask("quiet", SHORT))
    assert (await shared.ask("loud", SHORT))[0] == 429
    await shared.end(running)
    assert (await quiet)[0] == 200


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7"),
        ("", ""),
    ],
)
def test_addresses_that_one_client_has_count_as_one(address: str, network: str) -> None:
    assert network_of(address) == network
