"""Clients that leave and servers that stop: slots become free, running work ends well, nothing hangs."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine_server.core.routing import LIFECYCLE
from rnn_engine_server.core.settings import ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve, error_of, parse_event

STREAM = {"prompt": "a", "stream": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c", "d"]])
async def test_client_that_leaves_frees_its_slots(serve: Serve, stream: bool, prompt: object) -> None:
    engine = FakeEngine(hold=3)
    client = await serve(engine)
    call = asyncio.create_task(client.post("/v1/completions", json={"prompt": prompt, "stream": stream}))
    await engine.held.wait()
    if stream:
        (await call).close()
    else:
        call.cancel()
    await asyncio.wait_for(engine.left.wait(), 60)
    while engine.active:
        await asyncio.sleep(0)
    assert len(engine.requests) <= engine.num_slots


async def test_client_that_leaves_disturbs_nobody(serve: Serve) -> None:
    engine = FakeEngine(hold=3)
    client = await serve(engine)
    leaver = await client.post("/v1/completions", json=STREAM)
    other = asyncio.create_task(client.post("/v1/completions", json={"prompt": "b"}))
    leaver.close()
    await engine.left.wait()
    engine.release.set()
    assert (await other).status == 200


class TestStopping:
    async def test_running_work_ends_and_new_work_is_refused(self, serve: Serve) -> None:
        engine = FakeEngine(reply=lambda _: "Hello", hold=3)
        client = await serve(engine)
        response = await client.post("/v1/completions", json=STREAM)
        stopping = asyncio.create_task(client.app[LIFECYCLE].drain(5))
        await asyncio.sleep(0)
        error = await error_of(await client.post("/v1/completions", json=STREAM), 503)
        assert error["code"] == "closing"
        health = await client.get("/health")
        assert (health.status, (await health.json())["status"]) == (503, "closing")
        engine.release.set()
        assert (await response.text()).endswith("data: [DONE]\n\n")
        assert await stopping

    async def test_work_beyond_the_limit_ends_with_an_error_event(self, serve: Serve) -> None:
        engine = FakeEngine(reply=lambda _: "Hello", hold=3)
        client = await serve(engine, ServerSettings(drain_seconds=0))
        response = await client.post("/v1/completions", json=STREAM)
        await engine.held.wait()
        await client.app.shutdown()
        *_, last, nothing = (await response.text()).split("\n\n")
        assert nothing == ""
        assert parse_event(last)["error"]["message"] == "the engine has stopped"
        assert engine.closed

    async def test_engine_is_closed_with_the_server(self, serve: Serve) -> None:
        engine = FakeEngine()
        client = await serve(engine)
        await client.close()
        assert engine.closed
