"""text-embeddings-inference's routes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rnn_engine_server.apis.llama_server.completion import LlamaEmbedding
from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from rnn_engine_server.apis.tei import TeiError
from rnn_engine_server.core.settings import Limits, ServerSettings
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, check_shape, post


async def ask(client: Client, path: str, kind: type[object], body: Body) -> list[object]:
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    answer: list[object] = await response.json()
    check_shape(kind, answer)
    return answer


@pytest.mark.parametrize("fields", [{}, {"normalize": False}, {"dimensions": 8}, {"layer": 0, "part": "att_shift"}])
async def test_vectors_are_those_of_openais_route(serve: Serve, fields: Body) -> None:
    client = await serve(FakeEngine())
    listed = await post(client, "/v1/embeddings", EmbeddingList, {"input": ["ab", "c"], **fields})
    body = {"inputs": ["ab", "c"], "truncate": True, "truncation_direction": "Right", **fields}
    vectors = await ask(client, "/embed", list[list[float]], body)
    expected = [entry["embedding"] for entry in listed["data"]]
    np.testing.assert_allclose(np.array(vectors), expected, rtol=1e-6)
    [one] = await ask(client, "/embed", list[list[float]], {"inputs": "ab", **fields})
    assert one == vectors[0]


async def test_a_vector_after_each_token(serve: Serve) -> None:
    client = await serve(FakeEngine())
    texts = await ask(client, "/embed_all", list[list[list[float]]], {"inputs": ["ab", "c"]})
    response = await client.post("/embedding", json={"content": ["ab", "c"], "per_token": True})
    entries = await response.json()
    check_shape(list[LlamaEmbedding], entries)
    assert texts == [entry["embedding"] for entry in entries]


async def test_similarity_is_the_cosine_of_the_vectors(serve: Serve) -> None:
    client = await serve(FakeEngine())
    inputs = {"source_sentence": "ab", "sentences": ["c", "ab"]}
    cosines = await ask(client, "/similarity", list[float], {"inputs": inputs, "parameters": {"truncate": True}})
    vectors = np.array(await ask(client, "/embed", list[list[float]], {"inputs": ["ab", "c", "ab"]}))
    np.testing.assert_allclose(np.array(cosines), vectors[1:] @ vectors[0], rtol=1e-5)
    assert cosines[1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, "prompt_name"),
        ("/embed", {"inputs": "a", "dimensions": 0}, "dimensions"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "sentences"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 3}}, "max_inputs"),
    ],
)
async def test_refusals_are_in_teis_form(serve: Serve, path: str, body: Body, told: str) -> None:
    client = await serve(FakeEngine(), ServerSettings(limits=Limits(max_inputs=3)))
    response = await client.post(path, json=body)
    error = await response.json()
    check_shape(TeiError, error)
    assert (response.status, error["error_type"], told in error["error"]) == (422, "Validation", True), error


@pytest.mark.parametrize("path", ["/predict", "/embed_sparse"])
async def test_what_the_model_does_not_have_is_said(serve: Serve, path: str) -> None:
    response = await (await serve(FakeEngine())).post(path, json={"inputs": "a"})
    assert (response.status, "no classes" in (await response.json())["error"]) == (501, True)


async def test_the_demo_model_compares(demo: Client) -> None:
    inputs = {"source_sentence": "A cat.", "sentences": ["A cat.", "What is 3 + 4?"]}
    same, other = await ask(demo, "/similarity", list[float], {"inputs": inputs})
    assert isinstance(other, float)
    assert math.isclose(float(str(same)), 1.0, abs_tol=1e-5)
    assert other < 0.999
