"""A server whose device is lost again and again recovers by itself, and its cached states still hit."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import DeviceError
from rnn_engine.loading.parts import assemble
from rnn_engine.types import Runner
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.fake_runner import FakeRunner, Tokens, random_logits
from tests.support.fault_runner import Fault, FaultRunner, Faults
from tests.support.http import AT_ONCE, Body, Client, Through, client_over

PATH = "/v1/completions"
TOKENIZER = ByteTokenizer()
PROMPT = "what is kept on the host"
LOSSES = 50


@dataclass
class Device:
    """A device that can be lost, with the runners opened on it."""

    faults: Faults = field(default_factory=Faults)
    refusals: int = 0  # of the next attempts to open it
    opened: int = 0

    def open(self, before: FakeRunner | None = None) -> Runner:
        if self.refusals > 0:
            self.refusals -= 1
            raise DeviceError("told to refuse")
        self.opened += 1
        known: list[Tokens] = [()] if before is None else before.known_states
        self.fake = FakeRunner(random_logits(TOKENIZER.size), known_states=known)
        return FaultRunner(self.fake, self.faults)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr("rnn_engine.scheduler.worker.RETRY_SECONDS", (0.0,) * 8)
    return Device()


@pytest.fixture
async def client(through: Through, device: Device) -> AsyncIterator[Client]:
    runner = device.open()
    cache = make_cache(runner.shape, "model", runner, CacheConfig())
    parts = assemble(
        runner,
        TOKENIZER,
        model="fake",
        device="none",
        weights="f32",
        cache=cache,
        load_runner=lambda *_: device.open(device.fake),
    )
    async with client_over(await through(Engine(parts))) as client:
        yield client


async def ask_kept(client: Client) -> Body:
    response = await client.post(PATH, json={"prompt": PROMPT, "max_tokens": 8, "seed": 1})
    assert response.status == 200, await response.text()
    answer: Body = await response.json()
    return answer


async def ask(client: Client, number: int) -> str:
    """Send a request; return how it ended."""
    body = {"prompt": f"{number} something else", "max_tokens": 12, "seed": number, "stream": number % 2 == 0}
    response = await client.post(PATH, json=body)
    text = await response.text()
    if response.status == 503:
        assert int(response.headers["Retry-After"]) >= 1
    if response.status != 200 or not body["stream"]:
        assert response.status in (200, 500, 503), text
        return str(response.status)
    if text.endswith("data: [DONE]\n\n"):
        return "done"
    last = json.loads(text.rstrip().rpartition("\n\n")[2].removeprefix("data: "))
    assert last["error"]["type"] == "server_error"
    return "error event"


@AT_ONCE
async def test_a_device_that_is_lost_at_50_random_steps(client: Client, device: Device) -> None:
    chance = random.Random(7)
    first = await ask_kept(client)
    outcomes: Counter[str] = Counter()
    sent = 0
    for loss in range(1, LOSSES + 1):
        device.refusals = chance.choice((0, 0, 0, 2))
        device.faults.arm(chance.choice((Fault.LOST, Fault.LOST_LATE)), after=chance.randrange(30))
        while device.faults.struck.total() < loss:
            outcomes.update(await asyncio.gather(*(ask(client, sent + number) for number in range(4))))
            sent += 4
        while (await client.get("/health/ready")).status != 200:
            pass
        answer = await ask_kept(client)
        assert answer["choices"] == first["choices"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT)
    assert device.opened == 1 + LOSSES
    assert outcomes.total() == sent
    assert min(outcomes["200"], outcomes["done"], outcomes["error event"]) > 0
    health = await (await client.get("/health")).json()
    assert (health["status"], health["active"], health["queued"]) == ("ok", 0, 0)


async def test_a_device_that_does_not_come_back_is_told_and_nothing_hangs(client: Client, device: Device) -> None:
    device.refusals = 1000
    device.faults.arm(Fault.LOST)
    outcomes = await asyncio.gather(*(ask(client, number) for number in range(8)))
    assert not {"200", "done"} & set(outcomes)
    while (await client.get("/health/live")).status == 200:
        pass
    body = await (await client.get("/health/ready")).json()
    assert body["status"] == "failed"
    assert body["reason"] == "the device did not come back in 8 attempts: told to lose the device"
    assert await ask(client, 1) == "503"
