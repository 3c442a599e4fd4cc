"""Pages of other sites reach only the pages of the server, and no route that changes anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from aiohttp import hdrs

from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Encoded
from rnn_engine_server.core.performing import respond
from rnn_engine_server.core.routing import EVENTS, Route, make_router
from rnn_engine_server.models.registry import MODELS
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve

OTHER = "http://evil.example"
DOCUMENTS = {"/", "/docs", "/api-docs", "/openapi.json", "/api-docs/openapi.json"}
"""What a link on another site may open."""

OPENS = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
LINKS = {
    "a link": {"Sec-Fetch-Site": "cross-site", **OPENS, "Referer": f"{OTHER}/"},
    "a link without a referrer": {"Sec-Fetch-Site": "cross-site", **OPENS},
    "a link on another port": {"Sec-Fetch-Site": "same-site", **OPENS},
    "a link in an older browser": {"Referer": f"{OTHER}/page?a=b", "User-Agent": "Mozilla/5.0"},
}
LOADS = {
    "a frame": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    "an image": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    "a script": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    "a fetch": {"Origin": OTHER, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
    "a fetch of no-cors": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"},
    "a fetch in an older browser": {"Origin": OTHER, "Referer": f"{OTHER}/"},
    "a page from a file": {"Origin": "null"},
}
SILENT = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
"""A browser that hides where a request comes from, as on plain HTTP, to which no Sec-Fetch headers are sent."""


ITEM = {"role": "user", "content": "Hi"}


def address(path: str, names: Mapping[str, str] | None = None) -> str:
    """Return an address for a route's path. Its parameters are taken from `names`, or else name the fake model."""
    return re.sub(r"\{(\w+)[^}]*\}", lambda part: (names or {}).get(part[1], "fake"), path)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the handlers of all routes, and return the list of paths that requests reach."""
    found: list[str] = []

    async def note(call: Call) -> Encoded:
        found.append(call.path)
        return Encoded(b"")

    routes = tuple(replace(route, handler=note, request=None) for route in ALL_ROUTES)
    monkeypatch.setattr("rnn_engine_server.core.app._router", lambda: make_router(routes, respond))
    return found


def methods(route: Route) -> tuple[str, ...]:
    return (route.method, hdrs.METH_HEAD) if route.method == hdrs.METH_GET else (route.method,)


@pytest.mark.parametrize("kind", LINKS)
async def test_links_open_documents_alone(serve: Serve, reached: list[str], kind: str) -> None:
    client = await serve(FakeEngine())
    for route in ALL_ROUTES:
        for path in route.paths if route.method == hdrs.METH_GET else ():
            for method in methods(route):
                await client.request(method, address(path), headers=LINKS[kind])
    assert set(reached) == DOCUMENTS


@pytest.mark.parametrize("kind", LOADS)
async def test_parts_of_other_pages_reach_nothing(serve: Serve, reached: list[str], kind: str) -> None:
    client = await serve(FakeEngine())
    for route in ALL_ROUTES:
        for path in route.paths:
            for method in methods(route):
                await client.request(method, address(path), headers=LOADS[kind])
    assert reached == []


@pytest.mark.parametrize("origin", [OTHER, "null"])
async def test_forms_of_other_pages_reach_nothing(serve: Serve, reached: list[str], origin: str) -> None:
    client = await serve(FakeEngine())
    headers = {**OPENS, "Origin": origin, "Content-Type": "text/plain"}
    for route in ALL_ROUTES:
        for path in route.paths:
            await client.post(address(path), data=b'{"model": null}', headers=headers)
    assert reached == []


async def test_what_a_browser_reaches_that_tells_nothing_changes_nothing(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await client.post("/v1/states", json={"name": "kept", "prompt": "a"})
    response = await (await client.post("/v1/responses", json={"input": "Hi", "store": True})).json()
    conversation = await (await client.post("/v1/conversations", json={"items": [ITEM]})).json()
    kept = (
        "/v1/models",
        "/v1/states",
        f"/v1/responses/{response['id']}",
        f"/v1/conversations/{conversation['id']}",
        f"/v1/conversations/{conversation['id']}/items",
    )

    async def read() -> list[bytes]:
        return [await (await client.get(path)).read() for path in kept]

    before = await read()
    requests = len(engine.requests)
    for route in ALL_ROUTES:
        names = {"name": "kept", "id": (response if "responses" in route.path else conversation)["id"]}
        if route.method == hdrs.METH_GET and route.content_type != EVENTS:
            for path in route.paths:
                for method in methods(route):
                    await client.request(method, address(path, names), headers=SILENT)
            assert await read() == before, route.path
    assert len(engine.requests) == requests
    assert not engine.closed


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # ai00's clients, curl and scripts send none of these
        ({"User-Agent": "curl/8.5.0"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", **SILENT}, 200),
        ({"Sec-Fetch-Site": "none", **OPENS, **SILENT}, 403),  # a typed address, or a redirect from one
        (SILENT, 403),
        ({"Referer": f"{OTHER}/"}, 403),
        *((headers, 403) for headers in (*LINKS.values(), *LOADS.values())),
    ],
)
async def test_who_unloads_a_model_by_get(serve: Serve, headers: dict[str, str], status: int) -> None:
    client = await serve(FakeEngine())
    for path in ("/admin/models/unload", "/api/admin/models/unload"):
        assert (await client.get(path, headers=headers)).status == status
        assert client.app[MODELS].default.status == ("unloaded" if status == 200 else "loaded")


async def test_a_head_unloads_nothing(serve: Serve) -> None:
    client = await serve(FakeEngine())
    assert (await client.head("/admin/models/unload")).status == 405
    assert client.app[MODELS].default.status == "loaded"


async def test_the_servers_own_page_reads_in_a_browser_that_sends_a_referrer_alone(serve: Serve) -> None:
    client = await serve(FakeEngine())
    own = str(client.make_url("/"))
    assert (await client.get("/v1/models", headers={"Referer": own})).status == 200
    assert (await client.get("/v1/models", headers=SILENT)).status == 200
