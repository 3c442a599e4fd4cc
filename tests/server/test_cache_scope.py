"""No other key can learn what a key has asked: not by `cached_tokens`, not by time, not in /v1/cache."""

from __future__ import annotations

import pytest

from rnn_engine_server.apis.common.states import CacheBody
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.server.test_ownership import STARTING, object_in
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Load, Serve, client_over

KEYS = (
    ApiKey.of("ann", "ann", Scope.MANAGE),
    ApiKey.of("bob", "bob", Scope.MANAGE),
    ApiKey.of("op", "op", Scope.ADMIN),
)
IDLE = (  # run nothing
    "/v1/apply-template",
    "/v1/chat/completions/input_tokens",
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
)
SALTED = [(path, body) for path, body in STARTING if path != "/v1/states/compare"]  # this route does not use the cache
SECRET = "My card number is 1234 5678 9012 3456."


async def ask(client: Client, key: str, path: str, body: Body) -> Body:
    response = await client.post(path, json=body, headers={"X-Api-Key": key})
    assert response.status == 200, await response.text()
    return await object_in(response)


async def cached(client: Client, key: str, **fields: object) -> bool:
    """Return True if the cache knew the secret prompt. Afterwards it does."""
    answer = await ask(client, key, "/v1/completions", {"prompt": SECRET, "max_tokens": 0, **fields})
    usage = answer["usage"]
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    assert tokens in (0, usage["prompt_tokens"])
    return tokens > 0


async def texts(client: Client, key: str) -> str:
    response = await client.get("/v1/cache", headers={"X-Api-Key": key})
    return "".join(node["text"] for node in (await response.json())["nodes"])


@pytest.mark.parametrize("share_cache", [False, True])
async def test_a_guessed_prompt_of_another_client(load: Load, share_cache: bool) -> None:
    engine = await load(demo_choice(2))
    settings = ServerSettings(auth=AuthSettings(KEYS, share_cache=share_cache))
    async with client_over(engine, settings) as client:
        assert not await cached(client, "ann")
        assert await cached(client, "ann")
        assert await cached(client, "bob") is share_cache
        assert not await cached(client, "ann", cache_salt="s")
        assert await cached(client, "ann", cache_salt="s")
        assert not await cached(client, "ann", cache_salt="t")
        assert await cached(client, "bob", cache_salt="s") is share_cache
        await ask(client, "bob", "/v1/completions", {"prompt": "Bob's own", "max_tokens": 0})
        seen = {key: await texts(client, key) for key in ("ann", "bob", "op")}
        assert {key: "card number" in text for key, text in seen.items()} == {
            "ann": not share_cache,
            "bob": not share_cache,
            "op": True,
        }
        assert ("Bob's own" in seen["ann"], "Bob's own" in seen["op"]) == (False, True)


@pytest.mark.parametrize(("path", "body"), [*SALTED, ("/v1/states/mine/advance", {"input": "x"})])
async def test_every_route_keeps_to_the_scope_of_its_key(serve: Serve, path: str, body: Body) -> None:
    engine = FakeEngine()
    client = await serve(engine, ServerSettings(auth=AuthSettings(KEYS)))
    if path.endswith("advance"):
        await ask(client, "ann", "/v1/states", {"name": "mine", "prompt": "a"})
    await ask(client, "ann", path, body)
    assert {request.cache_scope for request in engine.requests} == ({"ann"} if path not in IDLE else set())
    if not path.endswith("advance"):
        engine.requests.clear()
        await ask(client, "bob", path, {**body, "cache_salt": "secret"})
        scopes = {request.cache_scope for request in engine.requests}
        assert [scope.partition("/")[0] for scope in scopes] == (["bob"] if path not in IDLE else [])
        assert not any("secret" in scope for scope in scopes)


def test_every_route_that_takes_a_salt_is_tried() -> None:
    takes = {route.path for route in ALL_ROUTES if route.request and issubclass(route.request, CacheBody)}
    assert takes == {path for path, _ in SALTED}


@pytest.mark.parametrize(("salt", "same"), [(None, True), ("s", False)])
async def test_without_keys_what_was_kept_before_is_found(serve: Serve, salt: str | None, same: bool) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await ask(client, "", "/v1/completions", {"prompt": "a", "cache_salt": salt})
    assert (engine.requests[-1].cache_scope == "") is same
