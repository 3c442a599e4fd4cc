"""The routes that show the cached states and drop them."""

from __future__ import annotations

import pytest

from rnn_engine_server.apis.engine.cache import Cache, CacheDropped
from rnn_engine_server.apis.openai.models import HealthBody
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine, encode
from tests.support.http import Body, Client, Serve, check_shape, error_of
from tests.support.toy_states import ROOT, ToyDevice, keep, toy_shape

SHAPE = toy_shape(vocab=VOCAB_SIZE)


def filled() -> StateCache:
    """Return a cache with a system text that was hit twice, a chat that goes on from it, and a third text in use."""
    device = ToyDevice(SHAPE, num_slabs=1)
    cache = make_cache(SHAPE, "model", device, CacheConfig(host_capacity=1 << 20), device)
    keep(cache, device, encode("Be brief. "))
    for _ in range(2):
        cache.release(cache.look_up(ROOT, encode("Be brief. Hi")))
    keep(cache, device, encode("Be brief. é?"), logits=False)
    keep(cache, device, encode("held"), root="pirate")
    cache.look_up("pirate", encode("held"))
    cache.look_up(ROOT, encode("unknown"))
    return cache


async def get(client: Client, query: str = "") -> Body:
    response = await client.get(f"/v1/cache{query}")
    assert response.status == 200, await response.text()
    body: Body = await response.json()
    check_shape(Cache, body)
    return body


async def test_totals_and_tiers(serve: Serve) -> None:
    cache = filled()
    body = await get(await serve(FakeEngine(cache=cache)))
    assert body["enabled"] is True
    counts = {name: body["totals"][name] for name in ("look_ups", "hits", "exact_hits", "tokens_saved", "checkpoints")}
    assert counts == {"look_ups": 4, "hits": 3, "exact_hits": 1, "tokens_saved": 24, "checkpoints": 3}
    assert {reason: count for reason, count in body["totals"]["misses"].items() if count} == {"unknown_prompt": 1}
    device, host = body["tiers"]
    assert (device["tier"], device["copies"], device["used"], device["capacity"]) == ("device", 1, 384, 384)
    assert (host["tier"], host["copies"], host["capacity"]) == ("host", 2, 1 << 20)
    assert (device["evictions"], host["demotions"]) == (2, 2)


async def test_positions_as_a_tree(serve: Serve) -> None:
    body = await get(await serve(FakeEngine(cache=filled())))
    seen = {node["text"]: (node["parent"], node["start"], node["length"]) for node in body["nodes"]}
    system, chat, held = (
        next(node for node in body["nodes"] if node["text"] == text) for text in ("Be brief. ", "é?", "held")
    )
    assert seen == {"Be brief. ": (None, 0, 10), "é?": (system["id"], 10, 13), "held": (None, 0, 4)}
    assert (system["root"], system["kind"], system["hits"]) == (ROOT, "prompt_end", 2)
    assert (chat["whole"], chat["bytes"], chat["has_logits"]) == (True, {"host": 384}, False)
    assert (held["root"], held["in_use"], held["bytes"]) == ("pirate", True, {"device": 384})


async def test_the_limit_keeps_what_was_hit_most(serve: Serve) -> None:
    client = await serve(FakeEngine(cache=filled()))
    assert sorted(node["hits"] for node in (await get(client, "?limit=2"))["nodes"]) == [1, 2]
    assert (await get(client, "?limit=0"))["nodes"] == []


@pytest.mark.parametrize("limit", ["-1", "1001", "x", "", "1.5", "²"])
async def test_a_limit_that_is_not_allowed(serve: Serve, limit: str) -> None:
    client = await serve(FakeEngine(cache=filled()))
    error = await error_of(await client.get("/v1/cache", params={"limit": limit}), 400)
    assert error["message"] == f"limit: {limit!r} is not allowed; expected a whole number from 0 to 1000"
    assert error["param"] == "limit"


async def test_dropping_leaves_what_is_in_use(serve: Serve) -> None:
    client = await serve(FakeEngine(cache=filled()))
    body = await (await client.delete("/v1/cache")).json()
    check_shape(CacheDropped, body)
    assert body == {"object": "cache.dropped", "dropped": 2}
    assert [node["text"] for node in (await get(client))["nodes"]] == ["held"]


async def test_a_server_that_keeps_nothing_says_so(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert await get(client) == {"object": "cache", "enabled": False, "totals": None, "tiers": [], "nodes": []}
    assert (await (await client.delete("/v1/cache")).json())["dropped"] == 0


async def test_health_has_the_hits(serve: Serve) -> None:
    body = await (await (await serve(FakeEngine(cache=filled()))).get("/health")).json()
    check_shape(HealthBody, body)
    assert (body["cache_look_ups"], body["cache_hits"]) == (4, 3)
