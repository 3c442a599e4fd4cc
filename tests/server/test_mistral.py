"""Mistral's route that fills in text, and what its package needs of OpenAI's routes."""

from __future__ import annotations

import pytest

from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from rnn_engine_server.apis.openai.schemas import ChatCompletion, ChatCompletionChunk
from tests.support.fake_engine import FakeEngine, encode
from tests.support.http import PIECES, Body, Serve, error_of, post, post_stream

PATH = "/v1/fim/completions"


@pytest.mark.parametrize("suffix", [{}, {"suffix": ""}, {"suffix": None}])
async def test_a_text_is_continued(serve: Serve, suffix: Body) -> None:
    engine = FakeEngine(reply=lambda _: "Hi")
    body = {"model": "codestral", "prompt": "a", "max_tokens": 5, "min_tokens": 1, "random_seed": 3, **suffix}
    answer = await post(await serve(engine), PATH, ChatCompletion, body)
    assert answer["choices"][0]["message"]["content"] == "Hi"
    assert answer["choices"][0]["finish_reason"] == "stop"
    [request] = engine.requests
    assert (list(request.prompt), request.max_tokens, request.min_tokens) == (encode("a"), 5, 1)
    assert request.sampling.seed == 3


@PIECES
async def test_a_stream(serve: Serve) -> None:
    client = await serve(FakeEngine(reply=lambda _: "Hi"))
    chunks = await post_stream(client, PATH, ChatCompletionChunk, {"prompt": "a"})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "H"}, {"content": "i"}, {"content": ""}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


async def test_text_before_an_end_is_refused_in_plain_words(serve: Serve) -> None:
    client = await serve(FakeEngine())
    error = await error_of(await client.post(PATH, json={"prompt": "a", "suffix": "b"}), 400)
    assert error["param"] == "suffix"
    assert "the model can't fill in text before an end" in error["message"]


async def test_models_and_embeddings_have_the_fields_that_its_package_needs(serve: Serve) -> None:
    client = await serve(FakeEngine())
    [model] = (await (await client.get("/v1/models")).json())["data"]
    assert (model["type"], model["capabilities"]["completion_chat"]) == ("base", True)
    assert await (await client.get("/v1/models/fake")).json() == model
    ids = {(await post(client, "/v1/embeddings", EmbeddingList, {"input": "a"}))["id"] for _ in range(2)}
    assert len(ids) == 2
