"""ai00's own routes: its clients' requests with its defaults, and the fields of the answers."""

from __future__ import annotations

import numpy as np
import pytest

from rnn_engine.sampling.params import Ai00Mirostat, Ai00Nucleus
from rnn_engine_server.apis.ai00.generation import Ai00CompletionChunk
from rnn_engine_server.apis.ai00.states import StateList
from rnn_engine_server.apis.engine.choices import Chooses
from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from rnn_engine_server.apis.openai.schemas import ChatCompletion, Completion
from rnn_engine_states.files.prefab import rows_from_state
from tests.support.fake_engine import FakeEngine, encode, state_after
from tests.support.http import Body, Serve, error_of, post, post_stream
from tests.support.models import tiny_shape

COMPLETIONS, CHAT = "/api/oai/completions", "/api/oai/chat/completions"
CHOOSES, STATES, EMBEDDINGS = "/api/oai/chooses", "/api/oai/states", "/api/oai/embeddings"
NIL = "00000000-0000-0000-0000-000000000000"
NUCLEUS: Body = {
    "type": "Nucleus",
    "top_p": 0.5,
    "top_k": 128,
    "temperature": 1,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.3,
    "penalty": 400,
    "penalty_decay": 0.99654026,
}

# Every field of ai00's requests, as its own documents and clients send it.
SENT: dict[str, Body] = {
    COMPLETIONS: {
        "prompt": ["The Eiffel Tower", " is in"],
        "state": NIL,
        "max_tokens": 1000,
        "stop": ["\n\n", "."],
        "stream": False,
        "bias": {"65": 1.5},
        "bnf_schema": None,
        "sampler": NUCLEUS,
        "top_p": 0.5,
        "top_k": 128,
        "temperature": 1.0,
    },
    CHAT: {
        "messages": [
            {"role": "System", "content": "Be brief."},
            {"role": "user", "content": "Hi!"},
            {"role": "Assistant", "content": "Hello."},
            {"role": "Observation", "content": "Rain."},
            {"role": "Tool", "content": "Sun."},
            {"role": "User", "content": "Tell me about water."},
        ],
        "names": {"User": "Bob", "assistant": "Alice"},
        "template": {"record": "{role}: {content}", "prefix": "{assistant}:", "sep": "\n\n"},
        "state": NIL,
        "max_tokens": 1000,
        "stop": "\n\nUser:",
        "stream": False,
        "logit_bias": {"65": 1.5},
        "bnf_schema": None,
        "sampler_override": NUCLEUS,
        "top_p": 0.5,
        "top_k": 128,
        "temperature": 1.0,
    },
    CHOOSES: {"input": ["The Eiffel", " Tower"], "choices": [" a", " b"], "calibrate": False, "state": NIL},
    STATES: {"input": ["a", "b"], "state": NIL},
    EMBEDDINGS: {"input": ["a", "b"], "embed_layer": 1, "state": NIL},
}
KINDS = {COMPLETIONS: Completion, CHAT: ChatCompletion, CHOOSES: Chooses, STATES: StateList, EMBEDDINGS: EmbeddingList}


@pytest.mark.parametrize("path", SENT)
@pytest.mark.parametrize("prefix", ["/api/oai/", "/api/oai/v1/"])
async def test_what_its_clients_send_is_taken(serve: Serve, path: str, prefix: str) -> None:
    client = await serve(FakeEngine())
    await post(client, path.replace("/api/oai/", prefix), KINDS[path], SENT[path])


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, body in SENT.items() for name in body])
async def test_every_field_may_be_absent(serve: Serve, path: str, name: str) -> None:
    client = await serve(FakeEngine())
    body = {key: value for key, value in SENT[path].items() if key != name}
    if name in ("messages", "choices"):  # ai00 takes them as empty, and answers with nothing
        assert (await error_of(await client.post(path, json=body), 400))["param"] == name
    else:
        await post(client, path, KINDS[path], body)


@pytest.mark.parametrize(("prompt", "text"), [(["ab", "c"], "abc"), ("ab", "ab"), ([], ""), (None, ""), ([""], "")])
async def test_texts_of_a_list_are_one_prompt(serve: Serve, prompt: object, text: str) -> None:
    engine = FakeEngine()
    answer = await post(await serve(engine), COMPLETIONS, Completion, {"prompt": prompt})
    assert len(answer["choices"]) == 1
    assert [list(request.prompt) for request in engine.requests] == [encode(text) or [0]]


async def test_where_openai_has_the_route_they_run_apart(serve: Serve) -> None:
    engine = FakeEngine()
    answer = await post(await serve(engine), "/v1/completions", Completion, {"prompt": ["ab", "c"]})
    assert len(answer["choices"]) == 2
    assert sorted(list(request.prompt) for request in engine.requests) == [encode("ab"), encode("c")]


async def test_its_defaults(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await post(client, COMPLETIONS, Completion, {"prompt": "a"})
    await post(client, CHAT, ChatCompletion, {"messages": {"role": "user", "content": "a"}})
    nucleus = Ai00Nucleus()
    for request in engine.requests:
        sampling = request.sampling
        assert (request.max_tokens, list(request.stop)) == (256, [b"\n\n"])
        assert (sampling.top_p, sampling.top_k, sampling.temperature) == (
            nucleus.top_p,
            nucleus.top_k,
            nucleus.temperature,
        )
        penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.penalty_decay
        assert penalties == (nucleus.presence_penalty, nucleus.frequency_penalty, nucleus.penalty_decay)


async def test_stops_of_a_chat_are_in_place_of_the_templates(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    bodies: list[Body] = [{"stop": ["x"]}, {"stop": []}, {"stop": "x", "template_stop": True}]
    for fields in bodies:
        await post(client, CHAT, ChatCompletion, {"messages": {"role": "user", "content": "a"}, **fields})
    assert [list(request.stop) for request in engine.requests] == [[b"x"], [], [b"x", b"\n\n"]]


async def test_no_stop_is_null(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    await post(client, COMPLETIONS, Completion, {"prompt": "a", "stop": None})
    await post(client, CHAT, ChatCompletion, {"messages": [{"role": "User", "content": "a"}], "stop": None})
    assert [list(request.stop) for request in engine.requests] == [[], []]


async def test_penalties_beside_a_sampler_count_without_one(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    fields = {"prompt": "a", "presence_penalty": 0.7, "frequency_penalty": 0.0}
    await post(client, COMPLETIONS, Completion, fields)
    await post(client, COMPLETIONS, Completion, {**fields, "sampler": {"type": "Mirostat", "tau": 2}})
    plain, sampled = (request.sampling for request in engine.requests)
    assert (plain.presence_penalty, plain.frequency_penalty) == (0.7, 0.0)
    assert sampled.sampler == Ai00Mirostat(2)


async def test_chunks_of_a_completion_have_their_text_twice(serve: Serve) -> None:
    client = await serve(FakeEngine(lambda request: "ab"))
    chunks = await post_stream(client, COMPLETIONS, Ai00CompletionChunk, {"prompt": "x", "echo": True})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["x", "a", "b", ""]
    assert [choice["delta"] for choice in choices] == [{"content": "x"}, {"content": "a"}, {"content": "b"}, {}]
    assert choices[-1]["finish_reason"] == "stop"


async def test_an_id_of_zeros_is_the_default_state_and_an_unknown_one_is_told(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    [entry] = (await post(client, STATES, StateList, {"input": "x"}))["data"]
    for state in (NIL, {"name": "", "id": NIL, "data": entry["data"], "shape": entry["shape"]}):
        await post(client, COMPLETIONS, Completion, {"prompt": "a", "state": state})
    unknown = {"prompt": "a", "state": NIL.replace("0", "1")}
    assert (await error_of(await client.post(COMPLETIONS, json=unknown), 404))["code"] == "not_found"
    _, default, inline = engine.requests
    assert default.initial_state is None
    assert inline.initial_state is not None
    assert np.array_equal(inline.initial_state.state["wkv"], state_after(encode("x"))["wkv"])


async def test_texts_of_a_list_have_one_state(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    [entry] = (await post(client, STATES, StateList, {"input": ["a", "b"]}))["data"]
    shape = tiny_shape(vocab=257)
    assert np.array_equal(np.float32(entry["data"]), rows_from_state(state_after(encode("ab")), shape))
    await post(client, STATES, StateList, {})
    assert [list(request.prompt) for request in engine.requests] == [encode("ab"), [0]]


async def test_embeddings_are_rows_of_a_layer(serve: Serve) -> None:
    client = await serve(FakeEngine())
    shifts = state_after(encode("ab"))["att_shift"]
    for fields, layer in (({}, 0), ({"layer": 1}, 1), ({"embed_layer": 1}, 1)):
        answer = await post(client, EMBEDDINGS, EmbeddingList, {"input": ["a", "b"], **fields})
        [entry] = answer["data"]
        assert np.array_equal(np.float32(entry["embedding"]), shifts[layer])


async def test_embeddings_without_a_layer_are_whole_states(serve: Serve) -> None:
    client = await serve(FakeEngine())
    [entry] = (await post(client, EMBEDDINGS, EmbeddingList, {"input": "ab", "layer": None}))["data"]
    whole = rows_from_state(state_after(encode("ab")), tiny_shape(vocab=257))
    assert np.array_equal(np.float32(entry["embedding"]), whole)


async def test_embeddings_take_the_fields_of_ours(serve: Serve) -> None:
    client = await serve(FakeEngine())
    fields = {"input": "ab", "layer": "mean", "part": "wkv", "normalize": True}
    there = await post(client, EMBEDDINGS, EmbeddingList, fields)
    assert there["data"] == (await post(client, "/v1/embeddings", EmbeddingList, fields))["data"]


async def test_a_body_of_more_than_64_kib_is_taken(serve: Serve) -> None:
    await post(await serve(FakeEngine()), COMPLETIONS, Completion, {"prompt": "a" * 70_000, "max_tokens": 1})


async def test_a_generation_that_fails_is_no_answer(serve: Serve) -> None:
    client = await serve(FakeEngine(fail_at=0))
    assert (await error_of(await client.post(COMPLETIONS, json={"prompt": "a"}), 500))["code"] == "step_failed"


async def test_embeds_are_refused(serve: Serve) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/api/oai/embeds", json={"input": "a"}), 501)
    assert "/v1/embeddings" in error["message"]


@pytest.mark.parametrize(("special", "first"), [({}, 0), ({"<|end|>": 5}, 5)])
@pytest.mark.parametrize("sent", [{}, {"input": ""}, {"input": None}, {"input": [""]}])
async def test_an_empty_input_is_the_token_that_ends_texts(
    special: dict[str, int], first: int, sent: Body, serve: Serve
) -> None:
    engine = FakeEngine(special_tokens=special)
    client = await serve(engine)
    await post(client, STATES, StateList, sent)
    await post(client, EMBEDDINGS, EmbeddingList, sent)
    assert [list(request.prompt) for request in engine.requests] == [[first]] * 2
