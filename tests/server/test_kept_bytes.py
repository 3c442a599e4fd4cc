"""The parts of clients' bodies that the server keeps take no more memory than the limits allow, for any body."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from rnn_engine_server.core.settings import Limits, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve, error_of

MEGABYTE = 1 << 20
CONVERSATIONS, RESPONSES = "/v1/conversations", "/v1/responses"
EMPTY_PART: Body = {"type": "reasoning_text", "text": ""}
SAID: Body = {"role": "user", "content": "a"}
LONG_NAME = "n" * 20_000


def tool(number: int) -> Body:
    properties = {f"p{each}": {"type": "string"} for each in range(50)}
    return {"type": "function", "name": f"t{number}", "parameters": {"type": "object", "properties": properties}}


HOSTILE: dict[str, tuple[str, Body]] = {
    "empty parts": (CONVERSATIONS, {"items": [{"type": "reasoning", "content": [EMPTY_PART] * 5000}]}),
    "short parts": (CONVERSATIONS, {"items": [{"type": "reasoning", "content": [{**EMPTY_PART, "text": "a"}] * 5000}]}),
    "empty items": (CONVERSATIONS, {"items": [{"role": "user", "content": ""}] * 500}),
    "long ids": (CONVERSATIONS, {"items": [{"role": "user", "content": "", "id": "é" * 100_000}]}),
    "wide texts": (CONVERSATIONS, {"items": [{"role": "user", "content": "a" * 50_000 + "\U0001f600"}]}),
    "empty parts of a response": (
        RESPONSES,
        {"input": [{"type": "reasoning", "content": [EMPTY_PART] * 5000}, {"role": "user", "content": "a"}]},
    ),
    "instructions": (RESPONSES, {"input": "a", "instructions": "b" * 200_000}),
    "tools": (RESPONSES, {"input": "a", "tools": [tool(each) for each in range(100)], "tool_choice": "none"}),
    "a schema": (
        RESPONSES,
        {"input": "a", "text": {"format": {"type": "json_schema", "schema": {"enum": [LONG_NAME] * 10}}}},
    ),
}


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace memory allocations while the block runs."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("path", "body"), HOSTILE.values(), ids=HOSTILE)
async def test_what_is_kept_is_bounded_whatever_is_in_it(serve: Serve, path: str, body: Body) -> None:
    limits = Limits(max_conversation_bytes=MEGABYTE)
    engine = FakeEngine()
    client = await serve(engine, ServerSettings(limits=limits))

    async def keep(times: int) -> int:
        for _ in range(times):
            async with client.session.post(client.make_url(path), json=body) as response:  # the client would keep it
                assert response.status == 200, await response.text()
        engine.requests.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    first = await keep(4)  # each thread that parses bodies may still hold its last one, and so do all after a few
    assert await keep(10) - first < 1.5 * MEGABYTE


async def test_tools_are_bounded(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for path, tools, said in (
        (RESPONSES, [{"type": "function", "name": "a"}], {"input": "a"}),
        ("/v1/chat/completions", [{"type": "function", "function": {"name": "a"}}], {"messages": [SAID]}),
    ):
        error = await error_of(await client.post(path, json={**said, "tools": tools * 2049}), 400)
        assert error["message"].endswith("expected at most 2048 items")


METADATA: list[tuple[object, str]] = [
    ({f"k{number}": "" for number in range(17)}, "at most 16 pairs"),
    ({"k" * 65: "v"}, "names of at most 64 characters"),
    ({"k": "v" * 513}, "values of at most 512 characters"),
]


@pytest.mark.parametrize(("metadata", "words"), METADATA)
@pytest.mark.parametrize("path", [CONVERSATIONS, RESPONSES, f"{CONVERSATIONS}/conv"])
async def test_metadata_is_bounded(serve: Serve, path: str, metadata: object, words: str) -> None:
    client = await serve(FakeEngine())
    said = {"input": "a"} if path == RESPONSES else {}
    response = await client.post(path, json={**said, "metadata": metadata})
    assert response.status == 400, await response.text()
    error = (await response.json())["error"]
    assert error["param"].startswith("metadata")
    assert words in error["message"]


async def test_metadata_up_to_the_bounds_is_kept(serve: Serve) -> None:
    client = await serve(FakeEngine())
    most = {f"{number:064}": "é" * 512 for number in range(16)}
    for path, said in ((CONVERSATIONS, {}), (RESPONSES, {"input": "a"})):
        made = await (await client.post(path, json={**said, "metadata": most})).json()
        assert (await (await client.get(f"{path}/{made['id']}")).json())["metadata"] == most
