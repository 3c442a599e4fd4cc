"""Cohere's routes for vectors of texts."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from rnn_engine_server.apis.cohere import CohereEmbeddings
from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve, error_of, post


@pytest.mark.parametrize("texts", [{"texts": ["ab", "c"]}, {"inputs": [{"content": [{"type": "text", "text": "ab"}]}]}])
async def test_vectors_have_the_forms_that_were_asked_for(serve: Serve, texts: Body) -> None:
    client = await serve(FakeEngine())
    openais = await post(client, "/v1/embeddings", EmbeddingList, {"input": ["ab", "c"]})
    expected = np.array([entry["embedding"] for entry in openais["data"]], np.float32)
    forms = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    body = {**texts, "input_type": "search_query", "embedding_types": forms, "truncate": "END"}
    answer = await post(client, "/v2/embed", CohereEmbeddings, body)
    found = answer["embeddings"]
    assert list(found) == forms
    for number, vector in enumerate(np.array(found["float"])):
        np.testing.assert_allclose(vector, expected[number], rtol=1e-6)
        np.testing.assert_allclose(np.array(found["int8"][number]) / 127, vector, atol=0.5 / 127 + 1e-6)
        assert [one - 128 for one in found["uint8"][number]] == found["int8"][number]
        assert np.array_equal(np.unpackbits(np.array(found["ubinary"][number], np.uint8)), vector > 0)
        assert [one + 128 for one in found["binary"][number]] == found["ubinary"][number]
        decoded = np.frombuffer(base64.b64decode(found["base64"][number]), "<f4")
        np.testing.assert_allclose(decoded, vector, rtol=1e-6)
    assert answer["response_type"] == "embeddings_by_type"
    assert answer["meta"]["billed_units"]["input_tokens"] > 0


async def test_version_1_gives_numbers_alone(serve: Serve) -> None:
    answer = await post(await serve(FakeEngine()), "/v1/embed", CohereEmbeddings, {"texts": ["ab", "c"]})
    assert [len(answer["embeddings"]), answer["response_type"]] == [2, "embeddings_floats"]
    assert answer["texts"] == ["ab", "c"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "texts: None is not allowed; expected a list of texts, either here or in `inputs`"),
        ({"texts": ["a"], "inputs": [{"content": []}]}, "either here or in `inputs`"),
        ({"texts": []}, "texts"),
        ({"texts": ["a"], "images": ["x"]}, "images"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types"),
        ({"texts": ["a"], "input_type": "image"}, "input_type"),
        ({"texts": ["a"], "output_dimension": 0}, "dimensions"),
    ],
)
async def test_what_is_wrong_is_named(serve: Serve, body: Body, words: str) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/v2/embed", json=body), 400)
    assert words in error["message"]
