"""The field `state` of requests, and `save_as`, over the fake engine."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.openai.schemas import ChatCompletion, ChatCompletionChunk, Completion
from rnn_engine_states.files.prefab import prefab_dims, rows_from_state
from rnn_engine_states.files.reading import LoadedState
from rnn_engine_states.frozen import FrozenState, freeze_state
from rnn_engine_states.named.entry import Retention
from tests.support.fake_engine import VOCAB_SIZE, FakeEngine, encode, state_after
from tests.support.http import Body, Client, Serve, error_of, post, post_stream
from tests.support.models import tiny_shape
from tests.support.named_states import make_states, save_tuned_state, some_state

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI: Body = {"messages": [{"role": "user", "content": "Hi"}]}
SHAPE = tiny_shape(vocab=VOCAB_SIZE)
DIMS = list(prefab_dims(SHAPE))
POET = some_state(1, SHAPE)
TUNED = {name: array if name == "wkv" else np.zeros_like(array) for name, array in POET.items()}


def put(engine: FakeEngine, name: str, text: str, *, logits: bool = True) -> FrozenState:
    """Keep a state that has taken in `text`, and return it."""
    tokens = encode(text)
    row = np.zeros(VOCAB_SIZE, np.float32) if logits else None
    initial = freeze_state(state_after(tokens), SHAPE, "test", logits=row, num_tokens=len(tokens), last_tokens=tokens)
    return engine.named.put(name, initial, Retention(), source="test").frozen


def root_of(request: GenerateRequest) -> str | None:
    return None if request.initial_state is None else request.initial_state.root


def inline(state: Any = POET, **changes: object) -> Body:  # noqa: ANN401
    return {"name": "mine", "id": "1", "data": rows_from_state(state, SHAPE).tolist(), "shape": DIMS, **changes}


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_every_form_of_the_field(serve: Serve, tmp_path: Path, path: str) -> None:
    engine = FakeEngine(named=make_states(tmp_path, shape=SHAPE))
    client = await serve(engine)
    poet = engine.named.add(LoadedState("tuned", POET), "poet", "test")
    save_tuned_state(tmp_path / "poet.st", POET, SHAPE)
    tuned = freeze_state(TUNED, SHAPE, "test").digest
    encoded = base64.b64encode(rows_from_state(POET, SHAPE).tobytes()).decode()
    forms: list[tuple[object, str | None]] = [
        (None, None),
        ("none", None),
        ("poet", poet.frozen.digest),
        (str(poet.id), poet.frozen.digest),
        (inline(), poet.frozen.digest),
        (inline(data=encoded), poet.frozen.digest),
        ({"path": "poet.st"}, tuned),
        ({"name": "x", "id": "y", "path": "poet.st"}, tuned),
    ]
    for form, root in forms:
        body = {**(HI if path == CHAT else {"prompt": "Hi"}), "state": form}
        await post(client, path, ChatCompletion if path == CHAT else Completion, body)
        assert root_of(engine.requests[-1]) == root, form
    engine.named.set_default("poet")
    for form, root in ((None, poet.frozen.digest), ("none", None)):
        await post(client, CHAT, ChatCompletion, {**HI, "state": form})
        assert root_of(engine.requests[-1]) == root


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        ("", 400, "state: '' is not allowed; expected a name or an id"),
        (7, 400, "state: 7 is not allowed"),
        ({"name": "poet"}, 400, "state: {'name': 'poet'} is not allowed"),
        ({**inline(), "tier": 1}, 400, "is not allowed; expected a name or an id"),
        ("poem", 404, "state 'poem' does not exist; there are: poet"),
        ({"path": "poem.st"}, 404, "state.path: no state file 'poem.st' in the folder of state files"),
        ({"path": "../poet.st"}, 400, "state.path: '../poet.st' is not allowed; expected a relative path inside"),
        ({"path": "/etc/passwd"}, 400, "state.path: '/etc/passwd' is not allowed"),
        (inline(data=["x"]), 400, "state.data: ['x'] is not allowed; expected a flat list of numbers"),
        (inline(data=[[1.0]]), 400, "state.data: [[1.0]] is not allowed"),
        (inline(data="§"), 400, "state.data: '§' is not allowed"),
        (inline(data="AAA="), 400, "state.data: 'AAA=' is not allowed"),
        (inline(data=[1.0]), 400, "state: data has shape [1]; this model needs"),
        (inline(data=[1e39] * 2304), 400, "state: data holds 2304 NaN or infinite values"),
        (inline(shape=[64, 18, 3, 1]), 400, "state: shape is [64, 18, 3, 1]; this model needs [64, 18, 2, 1]"),
        (inline(shape=[64, 18, "2", 1]), 400, "is not allowed; expected a name or an id"),
    ],
)
async def test_what_is_no_state_is_told(serve: Serve, tmp_path: Path, state: object, status: int, message: str) -> None:
    engine = FakeEngine(named=make_states(tmp_path, shape=SHAPE))
    engine.named.add(LoadedState("tuned", POET), "poet", "test")
    error = await error_of(await (await serve(engine)).post(CHAT, json={**HI, "state": state}), status)
    assert message in error["message"]
    assert engine.requests == []


async def test_without_a_folder_no_path_is_read(serve: Serve) -> None:
    response = await (await serve(FakeEngine())).post(CHAT, json={**HI, "state": {"path": "poet.st"}})
    assert "no folder of state files is configured" in (await error_of(response, 400))["message"]


@pytest.mark.parametrize(
    ("before", "opening"),
    [
        ("User: x\n\nAssistant: Yes.", "\n\n"),
        ("User: x\n\nAssistant: Yes.\n", "\n"),
        ("User: x\n\nAssistant: Yes.\n\n", ""),
        ("Yes.\n\n\n", ""),
    ],
)
async def test_a_chat_goes_on_after_what_a_state_has_taken_in(serve: Serve, before: str, opening: str) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    put(engine, "talk", before)
    await post(client, CHAT, ChatCompletion, {**HI, "state": "talk"})
    assert engine.detokenize(engine.requests[-1].prompt).decode() == opening + "User: Hi\n\nAssistant:"


async def test_a_chat_with_another_separator_goes_on_with_that(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    put(engine, "talk", "A: Yes.<|e")
    await post(client, CHAT, ChatCompletion, {**HI, "state": "talk", "template": {"sep": "<|end|>"}})
    assert engine.detokenize(engine.requests[-1].prompt).decode() == "nd|>User: Hi<|end|>Assistant:"


async def test_a_tuned_state_and_one_of_unknown_tokens(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    engine.named.add(LoadedState("tuned", TUNED), "tuned", "test")
    for state, opening in (("tuned", ""), (inline(), "\n\n")):
        await post(client, CHAT, ChatCompletion, {**HI, "state": state})
        assert engine.detokenize(engine.requests[-1].prompt).decode() == opening + "User: Hi\n\nAssistant:"


async def test_an_empty_text_goes_on_from_known_logits(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    put(engine, "known", "a")
    put(engine, "unknown", "b", logits=False)
    for state, prompt in (("known", []), ("unknown", [0]), ("none", [0])):
        await post(client, TEXT, Completion, {"prompt": "", "state": state})
        assert list(engine.requests[-1].prompt) == prompt


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_of_an_answer_is_kept(serve: Serve, stream: bool) -> None:
    engine = FakeEngine(reply=lambda _: " Yes.\n\nUser:")
    client = await serve(engine)
    start = put(engine, "talk", "abc")
    body = {**HI, "state": "talk", "save_as": {"name": "next", "owner": "bob", "ttl": 60}}
    if stream:
        *chunks, last = await post_stream(client, CHAT, ChatCompletionChunk, body)
        assert not any("saved_state" in chunk for chunk in chunks)
        assert last["choices"][0]["finish_reason"] == "stop"
    else:
        last = await post(client, CHAT, ChatCompletion, body)
    entry = last["saved_state"]
    taken_in = encode("\n\nUser: Hi\n\nAssistant: Yes.")
    assert (entry["name"], entry["owner"], entry["expires_in"] <= 60) == ("next", "bob", True)
    assert (entry["source"], entry["num_tokens"]) == ("answer", 3 + len(taken_in))
    kept = engine.named.get("next").frozen
    assert kept.last_tokens == tuple(encode("abc") + taken_in)[-32:]
    assert kept.digest == freeze_state(state_after(taken_in, start.digest), SHAPE, "test").digest


async def test_what_the_token_at_the_end_held_is_taken_in_too(serve: Serve) -> None:
    """A model's token may hold the end of the text together with the stop, though the fake engine's are bytes."""
    engine = FakeEngine(reply=lambda _: "Yes!\n\n", unrun=1)
    client = await serve(engine)
    await post(client, TEXT, Completion, {"prompt": "a", "stop": "\n\n", "save_as": "end"})
    kept = engine.named.get("end").frozen
    assert kept.last_tokens == tuple(encode("aYes!"))
    assert [list(request.prompt) for request in engine.requests] == [encode("a"), encode("!")]


async def test_a_conversation_goes_on_under_its_name(serve: Serve) -> None:
    engine = FakeEngine(reply=lambda _: " Yes.")
    client = await serve(engine)
    first = (await post(client, CHAT, ChatCompletion, {**HI, "save_as": "talk"}))["saved_state"]
    again = {**HI, "state": "talk", "save_as": "talk"}
    second = (await post(client, CHAT, ChatCompletion, again))["saved_state"]
    assert (second["id"], second["created"] >= first["created"]) == (first["id"], True)
    assert second["num_tokens"] == 2 * first["num_tokens"] + len("\n\n")
    assert [entry.name for entry in engine.named.entries()] == ["talk"]
    refused = await client.post(CHAT, json={**again, "save_as": {"name": "talk", "owner": "bob"}})
    assert "only a name, since the name of `state` keeps" in (await error_of(refused, 400))["message"]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (CHAT, {"n": 2, "save_as": "b"}, "save_as: 'b' is not allowed; expected null, since only a request with one"),
        (TEXT, {"prompt": ["a", "b"], "save_as": "b"}, "save_as: 'b' is not allowed"),
        (CHAT, {"save_as": "a"}, "save_as: 'a' is not allowed; expected a name that is free"),
        (CHAT, {"save_as": ""}, "save_as: '' is not allowed"),
        (CHAT, {"save_as": {"name": "b", "ttl": 0}}, "save_as.ttl: 0.0 is not allowed"),
        (CHAT, {"save_as": {"name": "b", "persistent": True}}, "save_as.persistent: True is not allowed"),
        (CHAT, {"save_as": {"name": "b", "for": 1}}, "unknown field 'save_as.for'; the known fields"),
        (CHAT, {"save_as": 3}, "save_as: 3 is not allowed; expected a JSON object"),
    ],
)
async def test_what_can_not_be_kept_is_told_before_anything_runs(
    serve: Serve, path: str, fields: Body, message: str
) -> None:
    engine = FakeEngine()
    put(engine, "a", "abc")
    body = {**(HI if path == CHAT else {}), **fields}
    error = await error_of(await (await serve(engine)).post(path, json=body), 400)
    assert message in error["message"]
    assert engine.requests == []


async def test_a_name_that_was_taken_meanwhile_is_told_with_the_answer(serve: Serve) -> None:
    engine = FakeEngine()
    client: Client = await serve(engine)

    def reply(_: GenerateRequest) -> str:
        put(engine, "b", "abc")
        return "text"

    engine.reply = reply
    answer = await post(client, CHAT, ChatCompletion, {**HI, "save_as": "b"})
    assert answer["choices"][0]["message"]["content"] == "text"
    assert answer["saved_state"] is None
    assert "'b' is not allowed; expected a name that is free" in answer["save_error"]["message"]


async def test_a_state_of_the_operator_stays_as_it_is(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    poet = engine.named.add(LoadedState("tuned", POET), "poet", "test")
    refusal = "'poet' is not allowed; expected a state that can be changed; this one is read-only"
    saved = await client.post(CHAT, json={**HI, "state": "poet", "save_as": "poet"})
    assert (await error_of(saved, 400))["message"].startswith(f"save_as: {refusal}")
    for answer in (
        await client.post("/v1/states/poet/advance", json={"input": "x"}),
        await client.post("/v1/states/poet/take", json={"owner": "me"}),
        await client.delete("/v1/states/poet"),
    ):
        assert (await error_of(answer, 400))["message"].startswith(f"state: {refusal}")
    assert (engine.requests, engine.named.entries()) == ([], (poet,))
    entry = await (await client.get("/v1/states/poet")).json()
    assert (entry["read_only"], entry["digest"]) == (True, poet.frozen.digest)


def refuse_to_sync(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_not_lost_where_its_state_can_not_be_written(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    engine = FakeEngine(reply=lambda _: " Yes.", named=make_states(tmp_path, shape=SHAPE))
    client = await serve(engine)
    monkeypatch.setattr("os.fsync", refuse_to_sync)
    body = {**(HI if path == CHAT else {"prompt": "a"}), "save_as": {"name": "b", "persistent": True}}
    if stream:
        kind: type[object] = ChatCompletionChunk if path == CHAT else Completion
        chunks = await post_stream(client, path, kind, body)
        answer = chunks[-1]
        assert answer["choices"][0]["finish_reason"] == "stop"
    else:
        answer = await post(client, path, ChatCompletion if path == CHAT else Completion, body)
        choice = answer["choices"][0]
        assert (choice["message"]["content"] if path == CHAT else choice["text"]).strip() == "Yes."
    error = answer["save_error"]
    assert (answer["saved_state"], error["type"], error["code"]) == (None, "server_error", "storage_failed")
    assert error["message"].endswith("can't be written to the folder of states: No space left on device")
    assert engine.named.entries() == ()


async def test_a_full_disk_is_no_fault_of_the_clients(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(named=make_states(tmp_path, shape=SHAPE))
    client = await serve(engine)
    put(engine, "a", "abc")
    monkeypatch.setattr("os.fsync", refuse_to_sync)
    response = await client.post("/v1/states/a/fork", json={"names": ["b"], "persistent": True})
    error = await error_of(response, 507)
    assert (error["type"], error["code"]) == ("server_error", "storage_failed")


@pytest.mark.parametrize(
    "head", [b"", b"{", b"PK\x03\x04", b"PK", b"\x80\x02", b"\xa5", b"\x2a\0\0\0\0\0\0\0{", b"\x7fELF"]
)
async def test_an_error_shows_nothing_of_a_file_that_is_no_state(serve: Serve, tmp_path: Path, head: bytes) -> None:
    (tmp_path / "notes").write_bytes(head + b"hunter2 is the password of the house")
    client = await serve(FakeEngine(named=make_states(tmp_path, shape=SHAPE)))
    error = await error_of(await client.post(CHAT, json={**HI, "state": {"path": "notes"}}), 400)
    assert error["message"].startswith("notes")
    assert not any(word in error["message"] for word in ("hunter", "pass", "house", "ELF", str(tmp_path)))
