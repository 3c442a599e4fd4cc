"""Every operation of a soak ends well against the real engine on the CPU."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.loading.settings import LoadSettings, StateSettings
from tests.support.http import Client, client_over
from tools.kill.ledger import Ledger, found_states
from tools.live_server.caller import Caller
from tools.soak import operations
from tools.soak.measure import Driver, Record
from tools.soak.operations import Operation, make_operations


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    engine = await Engine.load(model_path(), LoadSettings("cpu"), num_slots=4, states=StateSettings(folder=tmp_path))
    async with client_over(engine) as client:
        yield client


async def test_every_operation_ends_well(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "LONGEST_STALL", 0.1)
    url, ledger = str(client.make_url("")).rstrip("/"), Ledger()
    for number, operation in enumerate(make_operations(ledger)):
        await operation.run(Caller(client.session, url, Random(number), number))
    assert ledger.acknowledged.total() == 1
    assert ledger.check(await found_states(Caller(client.session, url, Random(0), 0))) == []


async def test_a_surprise_is_counted_and_others_go_on(client: Client) -> None:
    async def fail(caller: Caller) -> None:
        await caller.call("GET", "/nothing/here")

    async def succeed(caller: Caller) -> None:
        await caller.call("GET", "/health")

    url = str(client.make_url("")).rstrip("/")
    both = (Operation("fail", 1, fail), Operation("succeed", 1, succeed))
    record = Record()
    await Driver(client.session, url, both, Ledger(), rate=200, seed=0, most=8, record=record).run(0.2)
    [(what, count)] = record.surprises.items()
    assert what.startswith("fail: RefusedError: GET /nothing/here: 404, not [200]: ")
    assert count > 0
    assert {timing.name for timing in record.timings} == {"succeed"}
