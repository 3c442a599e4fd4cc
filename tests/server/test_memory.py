"""The server's memory that all requests hold: bodies that are being sent, and the values read from them."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rnn_engine.errors import OverloadedError
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.keys import ApiKey
from rnn_engine_server.core.call import BUDGET, FREE_BYTES, Call, MemoryBudget
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.schema import RequestBody
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, error_of

MEGABYTE = 1 << 20
TEXT: Body = {"prompt": "a", "max_tokens": 1}
COMPLETIONS = "/v1/completions"
PATIENCE = 20.0


def test_a_budget_is_shared_by_all_leases() -> None:
    budget = MemoryBudget(1000)
    with budget.lease() as first:
        first.hold(FREE_BYTES + 700)
        with budget.lease() as second:
            second.hold(FREE_BYTES + 300)
            assert budget.held == 1000
            with pytest.raises(OverloadedError, match=r"requests hold 1000 bytes .* at most 1000 \(max_held_bytes\)"):
                first.hold(FREE_BYTES + 701)
            second.hold(FREE_BYTES)
            first.hold(FREE_BYTES + 701)
        assert budget.held == 701
    assert budget.held == 0


def test_small_requests_always_have_room() -> None:
    budget = MemoryBudget(0)
    with budget.lease() as lease:
        lease.hold(FREE_BYTES)


async def reach(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def stalled(client: Client, method: str, path: str, num_bytes: int) -> AsyncIterator[None]:
    """Send `num_bytes` bytes of a body inside the block, but not its end."""
    before = client.app[BUDGET].held

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a" * num_bytes
        await asyncio.Event().wait()

    async def send() -> None:
        async with client.request(method, path, data=pieces()):
            pass

    task = asyncio.create_task(send())
    try:
        await reach(lambda: client.app[BUDGET].held == before + num_bytes - FREE_BYTES)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("method", "path"), [("POST", COMPLETIONS), ("PUT", "/v1/states/s")])
async def test_bodies_that_are_being_sent_are_counted(serve: Serve, method: str, path: str) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_held_bytes=3 * MEGABYTE)))
    async with stalled(client, method, path, MEGABYTE), stalled(client, method, path, MEGABYTE + 1000):
        response = await client.request(method, path, data=io.BytesIO(b"b" * (2 * MEGABYTE)))
        error = await error_of(response, 429)
        assert "max_held_bytes" in error["message"]
        assert response.headers["Retry-After"] == "1"
        assert (await client.post(COMPLETIONS, json=TEXT)).status == 200
    await reach(lambda: client.app[BUDGET].held == 0)


async def test_an_upload_lies_in_a_file_until_it_is_read(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    client = await serve(FakeEngine())
    async with stalled(client, "PUT", "/v1/states/s", 3 * MEGABYTE):
        await reach(lambda: sum(path.stat().st_size for path in tmp_path.rglob("upload")) >= 2 * MEGABYTE)
    await reach(lambda: not any(tmp_path.rglob("upload")))
    assert client.app[BUDGET].held == 0


async def test_an_upload_without_room_on_the_disk(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    client = await serve(FakeEngine())
    error = await error_of(await client.put("/v1/states/s", data=b"state"), 507)
    assert error["code"] == "storage_failed"


@pytest.mark.parametrize(
    ("method", "path", "limits"),
    [("POST", COMPLETIONS, Limits(max_body_bytes=1000)), ("PUT", "/v1/states/s", Limits(max_upload_bytes=1000))],
)
async def test_a_body_that_says_its_size_is_refused_before_it_is_sent(
    serve: Serve, method: str, path: str, limits: Limits
) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=limits))

    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1001\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    answer = await reader.readuntil(b"}}")
    writer.close()
    assert json.loads(answer)["error"]["message"] == "the body has 1001 bytes; expected at most 1000"


@pytest.mark.parametrize(
    "route", [each for each in ALL_ROUTES if each.always and each.request], ids=lambda each: each.path
)
async def test_a_route_that_is_open_to_all_takes_a_small_body(serve: Serve, route: Route) -> None:
    settings = ServerSettings(auth=AuthSettings((ApiKey.of("ann's key", "ann"),)))
    client = await serve(FakeEngine(), settings)
    for path in route.paths:
        for data in (b" " * 4097, pieces_of(b" " * 4096, b" ")):
            error = await error_of(await client.request(route.method, path, data=data), 413)
            assert error["message"].endswith("expected at most 4096")
        assert (await client.request(route.method, path, data=b"{" + b" " * 4095)).status == 400


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize("values", ["{}," * 20_000 + "{}", "[],[0]," * 20_000 + "[]", '{"a":0},' * 10_000 + "{}"])
async def test_values_that_take_much_more_than_their_text(serve: Serve, values: str) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_held_bytes=2 * MEGABYTE)))
    error = await error_of(await client.post(COMPLETIONS, data=f'{{"prompt": [{values}]}}'.encode()), 413)
    assert "bytes of memory; expected at most" in error["message"]
    await reach(lambda: client.app[BUDGET].held == 0)


async def test_what_was_read_is_held_until_the_request_ends(serve: Serve) -> None:
    engine = FakeEngine(hold=0)
    client = await serve(engine)
    body = {"prompt": [1] * 100_000, "max_tokens": 1}
    call = asyncio.create_task(client.post(COMPLETIONS, json=body))
    await engine.held.wait()
    assert client.app[BUDGET].held > 4_000_000
    engine.release.set()
    assert (await call).status == 200
    await reach(lambda: client.app[BUDGET].held == 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
@pytest.mark.parametrize("fields", [{"stream": False}, {"stream": True}, {"temperature": -1}])
async def test_what_a_call_holds_is_freed_without_the_garbage_collector(serve: Serve, path: str, fields: Body) -> None:
    texts = {"input": "Hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    client = await serve(FakeEngine())
    gc.collect()
    gc.disable()
    try:
        response = await client.post(path, json={"model": "m", "max_tokens": 4, **texts, **fields})
        await response.read()
        async with client.get("/health"):  # the connection has its last request
            kept = [each for each in gc.get_objects() if isinstance(each, Call | RequestBody)]
    finally:
        gc.enable()
    assert [each.path for each in kept if isinstance(each, Call)] == ["/health"]
    assert len(kept) == 1
