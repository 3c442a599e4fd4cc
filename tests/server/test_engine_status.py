"""/v1/engine: the status of the engines, once and as events."""

from __future__ import annotations

import asyncio

import pytest

from rnn_engine.telemetry import SlotUse
from rnn_engine_server.apis.engine.status import EngineStatus, ServerStatus
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.routing import LIFECYCLE
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine, encode
from tests.support.http import Body, Client, Serve, check_shape, error_of, parse_event
from tests.support.toy_states import ToyDevice, keep, toy_shape

HELD = (
    SlotUse(1, 7, "ann/salt", False, prompt_tokens=10, cached_tokens=4, run_tokens=6, generated_tokens=0, max_tokens=9),
    SlotUse(0, 8, "bob", False, prompt_tokens=3, cached_tokens=0, run_tokens=3, generated_tokens=2, max_tokens=9),
    SlotUse(2, 9, "", True, prompt_tokens=3, cached_tokens=0, run_tokens=5, generated_tokens=3, max_tokens=9),
)
SCOPES = {"ann": Scope.USE, "op": Scope.ADMIN}
KEYS = AuthSettings(tuple(ApiKey.of(f"{name}-key", name, scope) for name, scope in SCOPES.items()))


async def get(client: Client, **headers: str) -> Body:
    response = await client.get("/v1/engine", headers=headers)
    assert response.status == 200, await response.text()
    body: Body = await response.json()
    check_shape(ServerStatus, body)
    return body


async def test_what_is_in_the_slots_and_in_memory(serve: Serve) -> None:
    device = ToyDevice(toy_shape(vocab=VOCAB_SIZE), num_slabs=1)
    cache = make_cache(device.shape, "model", device, CacheConfig(host_capacity=1 << 20), device)
    keep(cache, device, encode("Hi"))
    client = await serve(FakeEngine(slots_held=HELD, num_slots=4, cache=cache))
    await client.post("/v1/completions", json={"prompt": "Hi"})
    body = await get(client)
    assert (body["default"], body["models"], body["requests"]) == ("fake", {"fake": "loaded"}, 1)
    [engine] = body["engines"]
    assert [(slot["slot"], slot["phase"], slot["run_tokens"]) for slot in engine["slots"]] == [
        (1, "prompt", 6),
        (0, "decode", 3),
        (2, "paused", 5),
    ]
    assert (engine["num_slots"], engine["requests"]["stop"], engine["tokens"]["prompt"]) == (4, 1, 2)
    assert {(part["place"], part["part"]): part["used"] for part in engine["memory"]} == {
        ("device", "cache"): 384,
        ("host", "cache"): 0,
        ("host", "cache_index"): engine["cache"]["index_bytes"],
        ("host", "named_states"): 0,
    }


async def test_owners_are_told_to_themselves_and_to_admins(serve: Serve) -> None:
    client = await serve(FakeEngine(slots_held=HELD), ServerSettings(auth=KEYS))

    async def owners(name: str) -> list[str | None]:
        [engine] = (await get(client, Authorization=f"Bearer {name}-key"))["engines"]
        check_shape(EngineStatus, engine)
        return [slot["owner"] for slot in engine["slots"]]

    assert await owners("ann") == ["ann", None, None]
    assert await owners("op") == ["ann", "bob", None]


async def test_events_come_until_the_server_stops(serve: Serve) -> None:
    client = await serve(FakeEngine())
    async with (
        client.get("/v1/engine/events?interval=60") as slow,
        client.get("/v1/engine/events?interval=0.1") as quick,
    ):
        for response, count in ((slow, 1), (quick, 3)):
            assert response.content_type == "text/event-stream"
            for _ in range(count):
                check_shape(ServerStatus, parse_event((await response.content.readuntil(b"\n\n")).decode()[:-2]))
        assert await client.app[LIFECYCLE].drain(30)  # it waits for neither stream
        assert parse_events(await slow.read()) == []
        parse_events(await quick.read())


async def test_a_client_that_leaves_ends_its_stream(serve: Serve) -> None:
    client = await serve(FakeEngine())
    async with client.get("/v1/engine/events?interval=0.1") as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    while client.app[LIFECYCLE].active:
        await asyncio.sleep(0)


async def test_a_stream_ends_when_the_time_of_a_request_is_up(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_request_seconds=0)))
    response = await client.get("/v1/engine/events?interval=60")
    assert len(parse_events(await response.read())) <= 1


async def test_what_fails_after_the_first_event_is_told_as_an_event(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    async with client.get("/v1/engine/events?interval=0.1") as response:
        await response.content.readuntil(b"\n\n")
        engine.counted = None  # type: ignore[assignment]
        events = parse_events(await response.read())
    assert events[-1]["error"]["code"] == "internal_error"


async def test_a_head_has_no_events(serve: Serve) -> None:
    client = await serve(FakeEngine())
    response = await client.head("/v1/engine/events?interval=60")
    assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize("interval", ["0", "61", "nan", "x", ""])
async def test_an_interval_that_is_not_allowed(serve: Serve, interval: str) -> None:
    client = await serve(FakeEngine())
    error = await error_of(await client.get("/v1/engine/events", params={"interval": interval}), 400)
    assert error["message"] == f"interval: {interval!r} is not allowed; expected a number of seconds from 0.1 to 60"


def parse_events(body: bytes) -> list[Body]:
    return [parse_event(frame) for frame in body.decode().split("\n\n") if frame]
