"""Embeddings and whole states over HTTP, with the fake engine and with the demo model."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from rnn_engine.errors import OverloadedError
from rnn_engine.operations.embedding import EmbeddingSettings, embed
from rnn_engine_server.apis.ai00.states import StateList
from rnn_engine_server.apis.llama_server.completion import LlamaEmbedding
from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_states.files.prefab import state_from_rows
from tests.support.fake_engine import FakeEngine, encode, state_after
from tests.support.http import Body, Client, Serve, check_shape, engine_in, error_of, post

PATH = "/v1/embeddings"
STATES = "/api/oai/states"
DEFAULT = EmbeddingSettings()
AB_C = [encode("ab"), encode("c")]


def f32(numbers: object) -> list[float]:
    """Return the numbers of an answer rounded to f32."""
    rounded: list[float] = np.asarray(numbers, np.float32).tolist()
    return rounded


def decode(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), "<f4")


async def vectors(engine: FakeEngine, texts: list[str], settings: EmbeddingSettings) -> list[list[float]]:
    """Return the vectors that the embedding operation gives for these texts, without HTTP."""
    return [one.vector.tolist() for one in await embed(engine, [encode(text) for text in texts], settings)]


async def test_every_form_of_input(serve: Serve) -> None:
    client = await serve(FakeEngine())
    first, second = await vectors(FakeEngine(), ["ab", "c"], DEFAULT)
    for given, expected in (
        ("ab", [first]),
        (["ab", "c"], [first, second]),
        (encode("ab"), [first]),
        ([encode("ab"), encode("c")], [first, second]),
    ):
        answer = await post(client, PATH, EmbeddingList, {"input": given})
        assert [entry["index"] for entry in answer["data"]] == list(range(len(expected)))
        for entry, vector in zip(answer["data"], expected, strict=True):
            assert f32(entry["embedding"]) == vector
    assert answer["model"] == "fake"


async def test_usage_counts_what_was_run(serve: Serve) -> None:
    client = await serve(FakeEngine(cached_tokens=1))
    for path, tokens, cached in ((PATH, 3, 2), (STATES, 3, 2)):
        kind = StateList if path == STATES else EmbeddingList
        answer = await post(client, path, kind, {"input": AB_C})
        assert answer["usage"] == {
            "prompt_tokens": tokens,
            "completion_tokens": 0,
            "total_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


@pytest.mark.parametrize(
    "fields",
    [
        {"layer": 0, "part": "att_shift"},
        {"layer": "all", "normalize": False},
        {"layer": [0, -1], "pooling": "value_means"},
        {"layer": "mean", "part": "all", "pooling": "none", "dimensions": 33},
    ],
)
async def test_settings(serve: Serve, fields: dict[str, Any]) -> None:
    client = await serve(FakeEngine())
    answer = await post(client, PATH, EmbeddingList, {"input": "ab", **fields})
    assert f32(answer["data"][0]["embedding"]) == (await vectors(FakeEngine(), ["ab"], replace(DEFAULT, **fields)))[0]


async def test_base64_is_the_same_numbers(serve: Serve) -> None:
    client = await serve(FakeEngine())
    for path, kind, name in ((PATH, EmbeddingList, "embedding"), (STATES, StateList, "data")):
        numbers = await post(client, path, kind, {"input": AB_C})
        texts = await post(client, path, kind, {"input": AB_C, "encoding_format": "base64"})
        for number, text in zip(numbers["data"], texts["data"], strict=True):
            assert f32(number[name]) == decode(text[name]).tolist()


async def test_states_are_whole_and_in_the_order_of_ai00(serve: Serve) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    for path in (STATES, "/api/oai/v1/states"):
        answer = await post(client, path, StateList, {"input": [encode("c"), encode("ab")]})
        assert [entry["index"] for entry in answer["data"]] == [0, 1]
        entry = answer["data"][1]
        assert entry["shape"] == [64, 18, 2, 1]
        rows = np.reshape(entry["data"], (2, 18, 64))
        expected = state_after(encode("ab"))
        assert f32(rows[1, 0]) == expected["att_shift"][1].tolist()
        assert f32(rows[1, -1]) == expected["ffn_shift"][1].tolist()
        head, key, value = 2, 5, 7
        assert np.float32(rows[1, 1 + key, head * 16 + value]) == expected["wkv"][1, head, value, key]
        read = state_from_rows(entry["data"], entry["shape"], engine.info.shape, "test")
        assert all(np.array_equal(read[name], expected[name]) for name in expected)


@pytest.mark.parametrize("path", [PATH, STATES])
async def test_state_that_all_start_from(serve: Serve, path: str) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    kind = StateList if path == STATES else EmbeddingList
    plain = await post(client, path, kind, {"input": "ab"})
    [entry] = (await post(client, STATES, StateList, {"input": "x", "encoding_format": "base64"}))["data"]
    inline = {"data": entry["data"], "shape": entry["shape"]}
    started = await post(client, path, kind, {"input": AB_C, "state": inline})
    assert started["data"][0] != plain["data"][0]
    starts = [request.initial_state for request in engine.requests[2:]]
    assert len(starts) == 2
    for start in starts:
        assert start is not None
        assert np.array_equal(start.state["wkv"], state_after(encode("x"))["wkv"])
    await error_of(await client.post(path, json={"input": "ab", "state": "nobody"}), 404)
    assert len(engine.requests) == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [[1], []]}, "input.1"),
        ({"input": ["a", [True]]}, "input"),
        ({"input": [[1, 257]]}, "input.0 token 1"),
        ({"input": "a", "encoding_format": "f16"}, "encoding_format"),
    ],
)
@pytest.mark.parametrize("path", [PATH, STATES])
async def test_bad_input(serve: Serve, path: str, fields: Body, param: str) -> None:
    engine = FakeEngine()
    error = await error_of(await (await serve(engine)).post(path, json=fields), 400)
    assert error["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input.0"),
        ({"input": ["a", ""]}, "input.1"),
    ],
)
async def test_nothing_to_embed(serve: Serve, fields: Body, param: str) -> None:
    engine = FakeEngine()
    error = await error_of(await (await serve(engine)).post(PATH, json=fields), 400)
    assert error["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"layer": 2}, "layer"),
        ({"layer": "last"}, "layer"),
        ({"layer": True}, "layer"),
        ({"layer": []}, "layer"),
        ({"layer": [0, True]}, "layer"),
        ({"part": "state"}, "part"),
        ({"pooling": "max"}, "pooling"),
        ({"dimensions": 65}, "dimensions"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"layers": 1}, "layers"),
    ],
)
async def test_bad_settings(serve: Serve, fields: Body, param: str) -> None:
    engine = FakeEngine()
    error = await error_of(await (await serve(engine)).post(PATH, json={"input": "a", **fields}), 400)
    assert error["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize(("inputs", "shown"), [(["a", ""], "''"), ([[97], []], "[]")])
async def test_nothing_to_embed_is_shown_as_it_came(serve: Serve, inputs: list[object], shown: str) -> None:
    error = await error_of(await (await serve(FakeEngine())).post(PATH, json={"input": inputs}), 400)
    assert error["message"] == f"input.1: {shown} is not allowed; expected at least one token"


async def test_answers_have_a_bound(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_vector_numbers=200)))
    await post(client, PATH, EmbeddingList, {"input": ["a"] * 3})
    error = await error_of(await client.post(PATH, json={"input": ["a"] * 4}), 400)
    assert (
        error["message"] == "input: 4 is not allowed; expected at most 3 inputs of 64 numbers each (max_vector_numbers)"
    )
    await post(client, PATH, EmbeddingList, {"input": ["a"] * 20, "dimensions": 10})
    await post(client, STATES, StateList, {"input": "a"})
    await error_of(await client.post(STATES, json={"input": AB_C}), 400)


async def test_long_vectors_are_whole(serve: Serve) -> None:
    client = await serve(FakeEngine())
    fields = {"input": "a", "layer": [0, 1] * 3, "part": "wkv", "pooling": "none", "normalize": False}
    answer = await post(client, PATH, EmbeddingList, fields)
    expected = np.concatenate([state_after(encode("a"))["wkv"].reshape(-1)] * 3)
    assert f32(answer["data"][0]["embedding"]) == expected.tolist()


@pytest.mark.parametrize("path", [PATH, STATES])
async def test_client_that_leaves_frees_its_slots(serve: Serve, path: str) -> None:
    engine = FakeEngine(hold=0)
    client = await serve(engine)
    call = asyncio.create_task(client.post(path, json={"input": [[1], [2], [3]]}))
    await engine.held.wait()
    call.cancel()
    await asyncio.wait_for(engine.left.wait(), 60)
    while engine.active:
        await asyncio.sleep(0)
    assert len(engine.requests) <= engine.num_slots


@pytest.mark.parametrize("path", [PATH, STATES])
async def test_failures_have_a_status_of_their_own(serve: Serve, path: str) -> None:
    engine = FakeEngine(fail_at=0)
    client = await serve(engine)
    assert (await error_of(await client.post(path, json={"input": "a"}), 500))["code"] == "step_failed"
    engine.refuse = OverloadedError("full", 1.0)
    assert (await error_of(await client.post(path, json={"input": "a"}), 429))["code"] == "overloaded"


async def test_demo_model(demo: Client) -> None:
    texts = ["What is the capital of France?", "Tell me the capital of Spain.", "How much is 12 + 30?"]
    together = await post(demo, PATH, EmbeddingList, {"input": texts})
    france, spain, total = (np.array(entry["embedding"]) for entry in together["data"])
    assert len(france) == engine_in(demo).info.shape.width
    assert np.linalg.norm(france) == pytest.approx(1.0, abs=1e-5)
    assert france @ spain > france @ total
    again = await post(demo, PATH, EmbeddingList, {"input": texts[0]})
    assert again["data"][0]["embedding"] == pytest.approx(france, abs=1e-5)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"]


async def test_text_in_two_parts_is_the_whole_text(demo: Client) -> None:
    tokens = engine_in(demo).tokenize("What is the capital of France?")
    [entry] = (await post(demo, STATES, StateList, {"input": tokens[:4]}))["data"]
    inline = {"data": entry["data"], "shape": entry["shape"]}
    parts = await post(demo, PATH, EmbeddingList, {"input": tokens[4:], "state": inline})
    whole = await post(demo, PATH, EmbeddingList, {"input": tokens})
    assert parts["data"][0]["embedding"] == pytest.approx(whole["data"][0]["embedding"], abs=1e-5)


async def test_official_client(demo: Client) -> None:
    async with openai.AsyncOpenAI(base_url=str(demo.make_url("/v1")), api_key="any", max_retries=0) as client:
        asked = await client.embeddings.create(model="demo", input=["Hello", "2 + 2"])  # the client asks for base64
        plain = await client.embeddings.create(model="demo", input="Hello", encoding_format="float", dimensions=16)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.embeddings.create(model="demo", input="Hello", dimensions=129)
    assert [len(entry.embedding) for entry in asked.data] == [128, 128]
    assert asked.usage.prompt_tokens == asked.usage.total_tokens > 0
    assert len(plain.data[0].embedding) == 16
    assert refused.value.param == "dimensions"
    same = await post(demo, PATH, EmbeddingList, {"input": "Hello"})
    check_shape(EmbeddingList, same)
    assert asked.data[0].embedding == pytest.approx(same["data"][0]["embedding"], abs=1e-5)


def parts(text: str) -> Body:
    return {"content": [{"type": "text", "text": text[:1]}, {"type": "text", "text": text[1:]}]}


@pytest.mark.parametrize(
    ("value", "texts"),
    [(parts("ab"), ["ab"]), ([parts("ab"), "c", {"prompt_string": "d"}], ["ab", "c", "d"]), ([97, "b", 99], None)],
)
async def test_inputs_may_be_objects_and_mixed(serve: Serve, value: object, texts: list[str] | None) -> None:
    engine = FakeEngine()
    await post(await serve(engine), PATH, EmbeddingList, {"input": value})
    expected = [[97, *encode("b"), 99]] if texts is None else [encode(text) for text in texts]
    assert [list(request.prompt) for request in engine.requests] == expected


@pytest.mark.parametrize(
    "value", [[], {"content": "a"}, {"content": [{"type": "unknown"}]}, {"content": [{"type": "image_url"}]}]
)
async def test_inputs_that_are_none(serve: Serve, value: object) -> None:
    error = await error_of(await (await serve(FakeEngine())).post(PATH, json={"input": value}), 400)
    assert error["param"].startswith("input")


class TestLlamaServer:
    async def native(self, serve: Serve, engine: FakeEngine, **body: object) -> list[Any]:
        response = await (await serve(engine)).post("/embedding", json=body)
        entries: list[Any] = await response.json()
        assert response.status == 200, entries
        for entry in entries:
            check_shape(LlamaEmbedding, entry)
        return entries

    async def test_one_vector_an_input(self, serve: Serve) -> None:
        engine = FakeEngine()
        entries = await self.native(serve, engine, content=["ab", "c"])
        assert [entry["index"] for entry in entries] == [0, 1]
        assert [f32(entry["embedding"][0]) for entry in entries] == await vectors(engine, ["ab", "c"], DEFAULT)
        [plain] = await self.native(serve, engine, input="ab", embd_normalize=-1)
        assert [f32(plain["embedding"][0])] == await vectors(engine, ["ab"], replace(DEFAULT, normalize=False))

    async def test_one_vector_a_token(self, serve: Serve) -> None:
        engine = FakeEngine()
        [entry] = await self.native(serve, engine, content="abc", per_token=True)
        expected = await vectors(engine, ["a", "ab", "abc"], replace(DEFAULT, normalize=False))
        assert [f32(vector) for vector in entry["embedding"]] == expected

    @pytest.mark.parametrize(
        "limits", [Limits(max_inputs=5), Limits(max_prompt_tokens=20), Limits(max_vector_numbers=200)]
    )
    async def test_tokens_are_bounded(self, serve: Serve, limits: Limits) -> None:
        client = await serve(FakeEngine(), ServerSettings(limits=limits))
        body: Body = {"content": "abcdef", "per_token": True}
        assert (await error_of(await client.post("/embedding", json=body), 400))["param"] == "input"
        body["content"] = "a"
        assert (await client.post("/embedding", json=body)).status == 200
