"""/v1/states over the fake engine: made, listed, copied, moved, advanced, removed, and as files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rnn_engine_server.apis.common.states import StateEntry
from rnn_engine_server.apis.engine.states import AdvancedState, CreatedState, StateEntries, StateRemoved
from rnn_engine_server.core.call import BUDGET
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.full import file_parts
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine, encode, state_after
from tests.support.http import Client, Serve, check_shape, error_of, post
from tests.support.models import tiny_shape
from tests.support.named_states import Clock, make_states
from tests.support.toy_states import same

PATH = "/v1/states"
SHAPE = tiny_shape(vocab=VOCAB_SIZE)


async def create(client: Client, name: str, prompt: str = "abc", **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return await post(client, PATH, CreatedState, {"name": name, "prompt": prompt, **fields})


async def listed(client: Client) -> dict[str, Any]:
    body: dict[str, Any] = await (await client.get(PATH)).json()
    check_shape(StateEntries, body)
    return body


async def names(client: Client) -> list[str]:
    return [entry["name"] for entry in (await listed(client))["data"]]


async def test_a_state_is_made_listed_described_and_removed(serve: Serve) -> None:
    engine = FakeEngine(cached_tokens=1)
    client = await serve(engine)
    assert await listed(client) == {
        "object": "list",
        "data": [],
        "default": None,
        "bytes": 0,
        "capacity": engine.named.usage().capacity,
    }
    created = await create(client, "a", owner="bob", ttl=60)
    entry = created["state"]
    assert (entry["name"], entry["source"], entry["num_tokens"], entry["owner"]) == ("a", "prompt", 3, "bob")
    assert (entry["persistent"], entry["expires_in"], entry["has_logits"]) == (False, 60, True)
    assert created["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert same(engine.named.get("a").frozen.state, state_after(encode("abc")))
    for key in ("a", entry["id"]):
        one = await (await client.get(f"{PATH}/{key}")).json()
        check_shape(StateEntry, one)
        assert one == entry
    body = await listed(client)
    assert (body["data"], body["bytes"]) == ([entry], entry["bytes"])
    removed = await (await client.delete(f"{PATH}/a")).json()
    check_shape(StateRemoved, removed)
    assert removed == {"object": "state.deleted", "id": entry["id"], "name": "a", "deleted": True}
    error = await error_of(await client.get(f"{PATH}/a"), 404)
    assert error["message"] == "state 'a' is gone: it was removed; there are: none"


async def test_a_state_is_made_from_tokens_after_another(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await create(client, "a")
    second = await post(client, PATH, CreatedState, {"name": "b", "prompt": encode("de"), "state": "a"})
    assert second["state"]["num_tokens"] == 5
    first = engine.named.get("a").frozen
    assert engine.named.get("b").frozen.last_tokens == tuple(encode("abcde"))
    assert same(engine.named.get("b").frozen.state, state_after(encode("de"), first.digest))


async def test_a_name_with_any_letters_is_found_in_a_path(serve: Serve) -> None:
    client = await serve(FakeEngine())
    name = "Pirat Käpt'n? 50%+#"
    await create(client, name)
    response = await client.get(f"{PATH}/Pirat%20K%C3%A4pt'n%3F%2050%25%2B%23")
    assert (await response.json())["name"] == name


async def test_copies_and_moves(serve: Serve) -> None:
    client = await serve(FakeEngine())
    await create(client, "a")
    [opened] = (await post(client, f"{PATH}/a/fork", StateEntries, {"names": ["b"], "owner": "bob"}))["data"]
    forked = await post(client, f"{PATH}/a/fork", StateEntries, {"names": ["c", "d"], "ttl": 5})
    assert (opened["owner"], [entry["owner"] for entry in forked["data"]]) == ("bob", ["c", "d"])
    assert forked["bytes"] == opened["bytes"]
    taken = await post(client, f"{PATH}/b/take", StateEntry, {"owner": "ann"})
    assert (taken["name"], taken["owner"], taken["id"]) == ("b", "ann", opened["id"])
    moved = await post(client, f"{PATH}/b/take", StateEntry, {"name": "e"})
    assert (moved["name"], moved["owner"]) == ("e", "e")
    assert await names(client) == ["a", "c", "d", "e"]


async def test_an_advance_goes_on(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    before = (await create(client, "a"))["state"]
    answer = await post(client, f"{PATH}/a/advance", AdvancedState, {"input": "de"})
    assert answer["usage"]["prompt_tokens"] == 2
    state = answer["state"]
    assert (state["id"], state["source"], state["num_tokens"]) == (before["id"], "advance", 5)
    assert state["digest"] != before["digest"]
    assert (await listed(client))["data"] == [state]


async def test_a_state_is_allocated_without_running_anything(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    empty = await create(client, "empty", "")
    assert (empty["state"]["num_tokens"], empty["usage"]["prompt_tokens"], engine.requests) == (0, 0, [])
    assert same(engine.named.get("empty").frozen.state, SHAPE.initial_state())
    await create(client, "a")
    copy = await create(client, "copy", "", state="a")
    assert copy["state"]["num_tokens"] == 3
    assert len(engine.requests) == 1
    advanced = await post(client, f"{PATH}/empty/advance", AdvancedState, {"input": "x"})
    assert advanced["state"]["num_tokens"] == 1


async def test_an_id_is_no_name_and_advances_its_own_state(serve: Serve) -> None:
    client = await serve(FakeEngine())
    first, second = [(await create(client, name, name))["state"] for name in ("first", "second")]
    refused = "is not allowed; expected a name that is not a UUID, since state ids are UUIDs"
    for path, body in (
        (PATH, {"name": first["id"], "prompt": "x"}),
        (f"{PATH}/second/fork", {"names": ["x", first["id"]]}),
        (f"{PATH}/second/take", {"name": first["id"]}),
    ):
        error = await error_of(await client.post(path, json=body), 400)
        assert refused in error["message"]
    await post(client, f"{PATH}/{first['id']}/advance", AdvancedState, {"input": "y"})
    entries = {entry["name"]: entry for entry in (await listed(client))["data"]}
    assert entries["first"]["digest"] != first["digest"]
    assert entries["second"] == second


async def test_an_advance_without_tokens_changes_nothing(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    before = (await create(client, "a"))["state"]
    answer = await post(client, f"{PATH}/a/advance", AdvancedState, {})
    assert (answer["state"], len(engine.requests)) == (before, 1)


async def test_advances_of_one_state_go_one_after_the_other(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await create(client, "a", prompt="0")
    answers = await asyncio.gather(
        *(post(client, f"{PATH}/a/advance", AdvancedState, {"input": str(number)}) for number in range(1, 6))
    )
    assert sorted(answer["state"]["num_tokens"] for answer in answers) == [2, 3, 4, 5, 6]
    text = engine.detokenize(engine.named.get("a").frozen.last_tokens)
    assert sorted(text) == sorted(b"012345")
    assert engine.most_active == 1


async def test_a_state_that_goes_while_it_advances_is_an_error(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await create(client, "a")
    engine.hold = 0
    call = asyncio.create_task(client.post(f"{PATH}/a/advance", json={"input": "x"}))
    await engine.held.wait()
    await client.delete(f"{PATH}/a")
    engine.release.set()
    error = await error_of(await call, 404)
    assert error["message"] == "state 'a' was removed or replaced meanwhile"
    assert await names(client) == []


@pytest.mark.parametrize("form", ["full", "tuned", "pth", "prefab"])
async def test_a_state_goes_out_and_comes_back(serve: Serve, form: str) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    entry = (await create(client, "a"))["state"]
    response = await client.get(f"{PATH}/a/export", params={"form": form})
    assert (response.status, response.content_type) == (200, "application/octet-stream")
    assert entry["id"] in response.headers["Content-Disposition"]
    data = await response.read()
    query = {"owner": "bob", "ttl": "60"}
    uploaded = await (await client.put(f"{PATH}/b", data=data, params=query)).json()
    check_shape(StateEntry, uploaded)
    assert (uploaded["name"], uploaded["form"], uploaded["owner"]) == ("b", "tuned" if form == "pth" else form, "bob")
    assert (uploaded["digest"] == entry["digest"]) == (form not in ("tuned", "pth"))
    assert uploaded["num_tokens"] == {"full": 3, "tuned": 0, "pth": 0, "prefab": None}[form]
    assert uploaded["has_logits"] == (form == "full")
    assert np.array_equal(engine.named.get("b").frozen.state["wkv"], engine.named.get("a").frozen.state["wkv"])


async def test_exports_count_the_copies_that_they_make(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnn_engine_server.core.call.FREE_BYTES", 0)
    engine = FakeEngine()
    client = await serve(engine, ServerSettings(limits=Limits(max_held_bytes=1 << 20)))
    await create(client, "a")
    num_bytes = engine.named.get("a").frozen.num_bytes
    held: list[int] = []
    export = StateFiles.export

    def watched(*args: Any) -> Iterator[bytes | memoryview]:  # noqa: ANN401
        held.append(client.app[BUDGET].held)
        return export(*args)

    monkeypatch.setattr(StateFiles, "export", watched)
    for form in ("full", "tuned", "prefab"):
        assert (await client.get(f"{PATH}/a/export", params={"form": form})).status == 200
    assert held[0] == 0  # it sends the state's own arrays
    assert (held[1], held[2]) == (num_bytes, 3 * num_bytes)
    with client.app[BUDGET].lease() as others:
        others.hold((1 << 20) - 3 * num_bytes + 1)
        for form, status in (("full", 200), ("tuned", 200), ("prefab", 429)):
            response = await client.get(f"{PATH}/a/export", params={"form": form})
            assert response.status == status, form
            await response.read()
    assert client.app[BUDGET].held == 0


async def test_head_of_an_export_sends_no_body(serve: Serve) -> None:
    client = await serve(FakeEngine())
    await create(client, "a")
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"HEAD {PATH}/a/export HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    export = await (await client.get(f"{PATH}/a/export")).read()
    assert f"Content-Length: {len(export)}\r\n".encode() in head
    writer.write(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("method", "path", "json", "status", "message"),
    [
        ("POST", "", {"name": "b"}, 400, "prompt: the field is required"),
        ("POST", "", {"name": "b", "prompt": [1, 257]}, 400, "prompt token 1: 257 is not allowed"),
        ("POST", "", {"name": "b", "prompt": ["x"]}, 400, "expected a text or a list of token ids"),
        ("POST", "", {"name": "a", "prompt": "x"}, 400, "name: 'a' is not allowed; expected a name that is free"),
        ("POST", "", {"name": "none", "prompt": "x"}, 400, "name: 'none' is not allowed"),
        ("POST", "", {"name": "b", "prompt": "x", "state": "c"}, 404, "state 'c' does not exist; there are: a"),
        ("POST", "", {"name": "b", "prompt": "x", "ttl": -1}, 400, "ttl: -1.0 is not allowed; expected a number of"),
        ("POST", "", {"name": "b", "prompt": "x", "persistent": True}, 400, "persistent: True is not allowed"),
        ("POST", "/c/fork", {"names": ["b"]}, 404, "state 'c' does not exist"),
        ("POST", "/a/fork", {"names": ["a"]}, 400, "'a' is not allowed"),
        ("POST", "/a/fork", {"names": []}, 400, "names: [] is not allowed; expected at least 1 item"),
        ("POST", "/a/fork", {"names": ["b", "b"]}, 400, "names: ['b', 'b'] is not allowed"),
        ("POST", "/c/take", {"owner": "b"}, 404, "state 'c' does not exist"),
        ("POST", "/a/take", {"owner": "../x"}, 400, "owner: '../x' is not allowed"),
        ("POST", "/c/advance", {"input": "x"}, 404, "state 'c' does not exist"),
        ("POST", "/a/advance", {"input": [257]}, 400, "prompt token 0: 257 is not allowed"),
        ("POST", "/a/advance", {"logprobs": 21}, 400, "unknown field 'logprobs'"),
        ("GET", "/c", None, 404, "state 'c' does not exist"),
        ("DELETE", "/c", None, 404, "state 'c' does not exist"),
        ("GET", "/c/export", None, 404, "state 'c' does not exist"),
        ("GET", "/a/export?form=gguf", None, 400, "form: 'gguf' is not allowed; expected one of full, tuned"),
        ("GET", "/a/export?from=full", None, 400, "from: 'full' is not allowed; expected one of the query's fields"),
        ("PUT", "/a", None, 400, "name: 'a' is not allowed; expected a name that is free"),
        ("PUT", "/b?ttl=x", None, 400, "ttl: 'x' is not allowed; expected a number of seconds"),
        ("PUT", "/b?ttl=nan", None, 400, "ttl: nan is not allowed"),
        ("PUT", "/b?persistent=yes", None, 400, "persistent: 'yes' is not allowed; expected true or false"),
        ("PUT", "/b?persistent=true", None, 400, "persistent: True is not allowed; expected false, since the"),
        ("PUT", "/b", None, 400, "upload: is neither safetensors nor .pth nor CBOR"),
    ],
)
async def test_what_is_wrong_is_told_and_nothing_is_lost(
    serve: Serve, method: str, path: str, json: object, status: int, message: str
) -> None:
    client = await serve(FakeEngine())
    before = (await create(client, "a"))["state"]
    error = await error_of(await client.request(method, PATH + path, json=json), status)
    assert message in error["message"]
    assert [{**entry, "expires_in": 3600} for entry in (await listed(client))["data"]] == [before]


def damaged(engine: FakeEngine, kind: str) -> bytes:
    """An upload that does not serve."""
    files, named = engine.named.files, engine.named.get("a")
    whole = b"".join(files.export("full", "a", named.id, named.frozen))
    match kind:
        case "truncated":
            return whole[:-7]
        case "flipped":
            return whole[:-1] + bytes([whole[-1] ^ 1])
        case "of another model":
            return whole.replace(b'"model":"model"', b'"model":"other"')
    wkv = np.full((4, 16, 16), np.nan if kind == "with NaN" else 0.0, np.float32)
    tensors = {f"blocks.{layer}.att.time_state": wkv for layer in range(2)}
    if kind == "of another shape":
        tensors["blocks.1.att.time_state"] = wkv[:, :8]
    if kind == "of fewer layers":
        del tensors["blocks.1.att.time_state"]
    return b"".join(file_parts(tensors, {}))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("truncated", "damaged or truncated safetensors file"),
        ("flipped", "damaged: "),
        ("of another model", "damaged: the metadata does not match its checksum"),
        ("with NaN", "blocks.0.att.time_state holds 1024 NaN or infinite values, the first at [0, 0, 0]"),
        ("of another shape", "blocks.1.att.time_state has shape [4, 8, 16]; this model needs [4, 16, 16]"),
        ("of fewer layers", "has time_state for layers 0 to 0; this model has layers 0 to 1"),
    ],
)
async def test_a_file_that_does_not_serve_is_refused(serve: Serve, kind: str, message: str) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await create(client, "a")
    error = await error_of(await client.put(f"{PATH}/b", data=damaged(engine, kind)), 400)
    assert message in error["message"]
    assert await names(client) == ["a"]


async def test_a_lease_that_ended_is_told(serve: Serve) -> None:
    clock = Clock()
    client = await serve(FakeEngine(named=make_states(shape=SHAPE, clock=clock)))
    await create(client, "a", owner="bob", ttl=10)
    clock.now = 9.0
    assert (await (await client.get(f"{PATH}/a")).json())["expires_in"] == 10
    clock.now = 19.0
    error = await error_of(await client.get(f"{PATH}/a"), 404)
    assert error["message"] == "state 'a' is gone: its lease ended after 10 seconds without use; there are: none"


async def test_where_there_is_no_room_the_newest_gives_way_and_else_is_refused(serve: Serve) -> None:
    size = 4 * VOCAB_SIZE + sum(array.nbytes for array in SHAPE.initial_state().values())
    engine = FakeEngine(named=make_states(shape=SHAPE, capacity=2 * size, clock=Clock()))
    client = await serve(engine)
    await create(client, "a", owner="old")
    await create(client, "b", owner="new", ttl=30)
    ran = len(engine.requests)
    response = await client.post(PATH, json={"name": "c", "prompt": "x", "owner": "newest"})
    error = await error_of(response, 429)
    assert error["message"].startswith(
        f"states: no room for {size} more bytes: {2 * size} of at most {2 * size} are in use"
    )
    assert response.headers["Retry-After"] == "30"
    assert (await names(client), len(engine.requests)) == (["a", "b"], ran)
    await create(client, "c", owner="old")
    assert await names(client) == ["a", "c"]
