"""The tool that measures batches, against a server without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestServer

from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import ServerSettings
from tools.bench.jobs import Batches, make_lines
from tools.bench.modelled import make_engine
from tools.live_server.asking import patient_session
from tools.live_server.caller import CHAT, TEXT


@pytest.fixture
async def batches() -> AsyncIterator[Batches]:
    app = make_app(make_engine(4, 0.0, 0.0), ServerSettings())
    async with TestServer(app) as server, patient_session() as session:
        yield Batches(session, str(server.make_url("")).rstrip("/"))


@pytest.mark.parametrize("url", [CHAT, TEXT])
async def test_lines_are_run_to_their_ends(batches: Batches, url: str) -> None:
    bodies = make_lines(url, 6)
    assert bodies == make_lines(url, 6)
    batch = await batches.until_ended(await batches.begin(url, bodies))
    assert batch["request_counts"]["completed"] == 6
    assert batch["usage"]["output_tokens"] == sum(int(str(body["max_tokens"])) for body in bodies)


async def test_a_batch_is_cancelled(batches: Batches) -> None:
    batch_id = await batches.begin(TEXT, make_lines(TEXT, 1000))
    assert await batches.until_running(batch_id) > 0
    await batches.cancel(batch_id)
    assert (await batches.get(batch_id))["status"] == "cancelled"
