"""The tree of cached texts over HTTP: shown only to admins, searched, used to go on from, and dropped by node."""

from __future__ import annotations

import pytest

from rnn_engine_server.apis.common.owned import Deleted
from rnn_engine_server.apis.engine.cache import CachePosition, CacheTreeList
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from rnn_engine_states.cache.cache import StateCache, make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine, encode
from tests.support.http import Body, Client, Serve, check_shape, error_of
from tests.support.toy_states import ROOT, ToyDevice, keep, toy_shape

TREE, POSITIONS = "/v1/cache/tree", "/v1/cache/positions"


def filled() -> StateCache:
    device = ToyDevice(toy_shape(vocab=VOCAB_SIZE))
    cache = make_cache(device.shape, "model", device, CacheConfig(host_capacity=1 << 20))
    for text in ("Be brief. ", "Be brief. Hi"):
        keep(cache, device, encode(text))
    return cache


async def tree(client: Client, **query: str) -> Body:
    response = await client.get(TREE, params=query)
    assert response.status == 200, await response.text()
    body: Body = await response.json()
    check_shape(CacheTreeList, body)
    return body


async def test_the_tree_and_the_whole_text_of_a_position(serve: Serve) -> None:
    client = await serve(FakeEngine(cache=filled()))
    body = await tree(client)
    above, below = body["nodes"]
    assert (above["text"], above["parent"], above["children"], below["parent"]) == ("Be brief. ", None, 1, above["id"])
    assert (below["text"], below["start"], below["length"], below["root"]) == ("Hi", 10, 12, ROOT)
    assert (body["total"], body["truncated"]) == (2, False)
    position = await (await client.get(f"{POSITIONS}/{below['id']}")).json()
    check_shape(CachePosition, position)
    assert (position["text"], position["tokens"]) == ("Be brief. Hi", encode("Be brief. Hi"))
    assert [node["match"] for node in (await tree(client, text="hi"))["nodes"]] == [False, True]
    assert [node["text"] for node in (await tree(client, under=below["id"]))["nodes"]] == ["Hi"]
    assert (await tree(client, depth="0"))["truncated"] is True
    assert [node["id"] for node in (await tree(client, limit="1"))["nodes"]] == [above["id"]]


async def test_a_position_is_dropped_unless_it_is_in_use(serve: Serve) -> None:
    cache = filled()
    client = await serve(FakeEngine(cache=cache))
    match = cache.look_up(ROOT, encode("Be brief. Hi"))
    below = (await tree(client))["nodes"][1]["id"]
    error = await error_of(await client.delete(f"{POSITIONS}/{below}"), 409)
    assert error["message"] == f"the kept position {below!r} is in use; drop it when its requests have ended"
    cache.release(match)
    answer = await (await client.delete(f"{POSITIONS}/{below}")).json()
    check_shape(Deleted, answer)
    assert [node["text"] for node in (await tree(client))["nodes"]] == ["Be brief. "]
    for method in ("GET", "DELETE"):
        error = await error_of(await client.request(method, f"{POSITIONS}/{below}"), 404)
        assert error["message"].startswith(f"there is no kept position {below!r}")


async def test_a_server_that_keeps_nothing(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert await tree(client) == {"object": "cache.tree", "nodes": [], "total": 0, "truncated": False}
    for method in ("GET", "DELETE"):
        assert (await client.request(method, f"{POSITIONS}/1")).status == 404


async def test_texts_are_for_admins_alone(serve: Serve) -> None:
    keys = tuple(ApiKey.of(f"{scope.value}-key", scope.value, scope) for scope in Scope)
    client = await serve(FakeEngine(cache=filled()), ServerSettings(auth=AuthSettings(keys)))
    for scope in Scope:
        response = await client.get(TREE, headers={"X-Api-Key": f"{scope.value}-key"})
        assert response.status == (200 if scope is Scope.ADMIN else 403)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("text", "x" * 201, "at most 200 characters"),
        ("depth", "-1", "a whole number from 0 to 1000"),
        ("limit", "1001", "a whole number from 0 to 1000"),
    ],
)
async def test_a_query_that_is_not_allowed(serve: Serve, name: str, value: str, allowed: str) -> None:
    client = await serve(FakeEngine(cache=filled()))
    error = await error_of(await client.get(TREE, params={name: value}), 400)
    assert error["param"] == name
    assert error["message"].endswith(f"is not allowed; expected {allowed}")


async def test_a_request_goes_on_from_a_position(demo: Client) -> None:
    await demo.post("/v1/completions", json={"prompt": "The sky is blue and", "max_tokens": 4})
    [*_, last] = (await tree(demo, text="blue"))["nodes"]
    position = await (await demo.get(f"{POSITIONS}/{last['id']}")).json()
    assert position["text"].startswith("The sky is blue and")
    response = await demo.post("/v1/completions", json={"prompt": position["tokens"], "max_tokens": 1})
    usage = (await response.json())["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == position["length"]
    before = (await tree(demo))["total"]
    assert (await demo.delete(f"{POSITIONS}/{last['id']}")).status == 200
    assert (await tree(demo))["total"] == before - 1
