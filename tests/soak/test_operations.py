"""Every operation of a soak ends well against the real engine on the CPU."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest
from aiohttp.test_utils import TestClient, TestServer

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tests.support.http import Client
from tools.live_server.caller import Caller
from tools.soak import operations
from tools.soak.measure import Driver
from tools.soak.operations import Operation, make_operations


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    engine = await Engine.load(model_path(), LoadSettings("cpu"), num_slots=4)
    async with TestClient(TestServer(make_app(engine, ServerSettings()))) as client:
        yield client


async def test_every_operation_ends_well(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "LONGEST_STALL", 0.1)
    url = str(client.make_url("")).rstrip("/")
    for number, operation in enumerate(make_operations()):
        await operation.run(Caller(client.session, url, Random(number), number))


async def test_a_surprise_is_counted_and_others_go_on(client: Client) -> None:
    async def fail(caller: Caller) -> None:
        await caller.call("GET", "/nothing/here")

    async def succeed(caller: Caller) -> None:
        await caller.call("GET", "/health")

    url = str(client.make_url("")).rstrip("/")
    both = (Operation("fail", 1, fail), Operation("succeed", 1, succeed))
    driver = Driver(client.session, url, both, rate=200, seed=0, most=8)
    await driver.run(0.2)
    [(what, count)] = driver.record.surprises.items()
    assert what.startswith("fail: RefusedError: GET /nothing/here: 404, not [200]: ")
    assert count > 0
    assert driver.record.done.keys() == {"succeed"}
    assert len(driver.record.timings) == driver.record.done["succeed"]
