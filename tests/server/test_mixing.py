"""`state` as a list: several states of one request, mixed."""

from __future__ import annotations

from typing import Any

import pytest

from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.engine.states import CreatedState
from rnn_engine_server.apis.openai.schemas import ChatCompletion, Completion
from rnn_engine_server.core.settings import Limits, ServerSettings
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import Client, Serve, error_of, post, post_stream

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TALK = [{"role": "user", "content": "Hi"}]


async def with_states(serve: Serve, engine: FakeEngine) -> Client:
    """Return a client of a server with the states `a` and `b`."""
    client = await serve(engine)
    for name in ("a", "b"):
        await post(client, "/v1/states", CreatedState, {"name": name, "prompt": f"state {name}"})
    engine.requests.clear()
    return client


def digests(engine: FakeEngine, request: GenerateRequest) -> list[str | None]:
    """The names of the states of a request's members; None for an empty one."""
    names = {engine.named.get(name).frozen.digest: name for name in ("a", "b")}
    return [None if one.initial_state is None else names[one.initial_state.root] for one in request.members]


async def test_a_completion_mixes_the_states_that_it_lists(serve: Serve) -> None:
    engine = FakeEngine(num_slots=3)
    client = await with_states(serve, engine)
    ident = str(engine.named.get("b").id)
    state = [{"name": "a", "weight": 1.5}, {"id": ident, "weight": -0.5}, {"name": "none", "weight": 1, "prompt": "x"}]
    body = await post(client, COMPLETIONS, Completion, {"prompt": "hello", "state": state, "n": 2, "seed": 3})
    first, second = engine.requests
    assert first.mix is not None
    assert (first.mix.weights, first.mix.kind) == ((1.5, -0.5, 1.0), "log")
    assert digests(engine, first) == ["a", "b", None]
    assert [list(member.prompt) for member in first.members] == [encode("hello"), encode("hello"), encode("x")]
    assert second.mix is not None
    assert (second.mix.weights, digests(engine, second)) == (first.mix.weights, digests(engine, first))
    assert second.prompt == first.prompt
    assert second.sampling.seed != first.sampling.seed == 3
    assert body["usage"]["prompt_tokens"] == 5


async def test_an_empty_prompt_is_what_each_state_needs(serve: Serve) -> None:
    engine = FakeEngine()
    client = await with_states(serve, engine)
    states = [{"name": "a", "weight": 1}, {"weight": 1}]
    await post(client, COMPLETIONS, Completion, {"prompt": "", "state": states})
    assert [tuple(member.prompt) for member in engine.requests[0].members] == [(), (0,)]


async def test_a_chat_is_put_behind_each_state_as_that_needs_it(serve: Serve) -> None:
    engine = FakeEngine(num_slots=3)
    client = await with_states(serve, engine)
    await post(client, CHAT, ChatCompletion, {"messages": TALK, "state": "a"})
    await post(client, CHAT, ChatCompletion, {"messages": TALK})
    state = [{"name": "a", "weight": 0.5}, {"weight": 0.25}, {"name": "b", "weight": 0.25, "prompt": "Assistant:"}]
    fields: dict[str, Any] = {"messages": TALK, "state": state, "mix": "probability"}
    await post(client, CHAT, ChatCompletion, fields)
    after_text, from_empty, mixed = engine.requests
    assert mixed.mix is not None
    assert mixed.mix.kind == "probability"
    behind, fresh, own = mixed.members
    assert (behind.prompt, behind.turn_positions) == (after_text.prompt, after_text.turn_positions)
    assert (fresh.prompt, fresh.turn_positions) == (from_empty.prompt, from_empty.turn_positions)
    assert behind.prompt != fresh.prompt
    assert (list(own.prompt), list(own.turn_positions)) == (encode("Assistant:"), [])


async def test_a_stream_of_a_mix_saves_the_end_of_its_first_state(serve: Serve) -> None:
    engine = FakeEngine()
    client = await with_states(serve, engine)
    state = [{"name": "a", "weight": 1.5}, {"name": "b", "weight": -0.5}]
    fields = {"prompt": "x", "state": state, "max_tokens": 2, "save_as": "end"}
    await post_stream(client, COMPLETIONS, Completion, fields)
    end = engine.named.get("end").frozen
    assert end.last_tokens == tuple(encode("state ax")[-len(end.last_tokens) + 2 :] + encode(" H"))


REFUSED: list[tuple[object, str, str]] = [
    ([], "state", "a list of objects"),
    (["a"], "state.0", "a list of objects"),
    ([{"name": "a"}], "state.0", "each with a weight"),
    ([{"name": "a", "weight": "1"}], "state.0", "each with a weight"),
    ([{"name": "a", "weight": True}], "state.0", "each with a weight"),
    ([{"name": "a", "weight": 10**400}], "state.0.weight", "64-bit float"),
    ([{"name": "a", "weight": 1, "prompt": "x"}], "state.0.prompt", "the first state takes the prompt"),
    ([{"name": "a", "weight": 1}, {"weight": 1, "prompt": 3}], "state.1.prompt", "a text"),
    ([{"name": "a", "id": "b", "weight": 1}], "state.0", "not both"),
    ([{"name": "a", "weight": 1}, {"nam": "a", "weight": 1}], "state.1", "a name or an id"),
    ([{"name": "a", "weight": 1}, {"data": "?", "shape": [1, 1, 1, 1], "weight": 1}], "state.1.data", "base64"),
    ([{"name": "a", "weight": 1}, {"name": "b", "weight": 1}, {"weight": 1}], "state", "one for each slot"),
    ([{"name": "a", "weight": 0}, {"name": "b", "weight": 0}], "state", "at least one weight that is not 0"),
    ([{"name": "a", "weight": 1}] * 5, "state", "max_mixed_states"),
]


@pytest.mark.parametrize(("state", "field", "allowed"), REFUSED)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_list_that_is_wrong_is_refused_by_name(
    serve: Serve, path: str, state: object, field: str, allowed: str
) -> None:
    engine = FakeEngine()
    client = await serve(engine, ServerSettings(limits=Limits(max_mixed_states=4)))
    for name in ("a", "b"):
        await post(client, "/v1/states", CreatedState, {"name": name, "prompt": name})
    fields = {"prompt": "x"} if path == COMPLETIONS else {"messages": TALK}
    error = await error_of(await client.post(path, json={**fields, "state": state}), 400)
    assert error["param"] == field
    assert allowed in error["message"]


async def test_what_mixing_can_not_do_is_refused(serve: Serve) -> None:
    client = await with_states(serve, FakeEngine())
    mix = [{"name": "a", "weight": 1}, {"name": "b", "weight": -1}]
    body = {"prompt": "x", "state": mix}
    error = await error_of(await client.post(COMPLETIONS, json={**body, "mix": "probability"}), 400)
    assert "from 0 to 100" in error["message"]
    error = await error_of(await client.post(COMPLETIONS, json={**body, "echo": True, "logprobs": 1}), 400)
    assert error["param"] == "logprobs"
    error = await error_of(await client.post(COMPLETIONS, json={**body, "mix": "mean"}), 400)
    assert error["param"] == "mix"
    missing = [{"name": "a", "weight": 1}, {"name": "nobody", "weight": 1}]
    await error_of(await client.post(COMPLETIONS, json={"prompt": "x", "state": missing}), 404)
    error = await error_of(await client.post("/v1/embeddings", json={"input": "x", "state": mix}), 400)
    assert error["param"] == "state"
