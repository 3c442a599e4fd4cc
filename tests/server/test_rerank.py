"""Reranking, in the forms of Cohere, Jina, llama-server and text-embeddings-inference."""

from __future__ import annotations

import math

import pytest

from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.rerank import Reranked, TeiRank
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, check_shape, error_of, post

QUERY: Body = {"query": "b", "documents": ["x", "y", {"text": "z"}]}
ODDS = (sum(b" No") + 3 - sum(b" Yes") - 4) / 100  # the fake engine gives token t the log-probability -t / 100


def prompt_of(request: GenerateRequest) -> str:
    return FakeEngine().detokenize(request.prompt).decode()


@pytest.mark.parametrize(("path", "version"), [("/v1/rerank", "1"), ("/rerank", "1"), ("/v2/rerank", "2")])
async def test_the_model_is_asked_after_each_text(serve: Serve, path: str, version: str) -> None:
    engine = FakeEngine()
    answer = await post(await serve(engine), path, Reranked, {**QUERY, "top_n": 2, "return_documents": True})
    asked = [prompt_of(request) for request in engine.requests]
    assert [f"Query: b\nDocument: {text}\n" in prompt for text, prompt in zip("xxyyzz", asked, strict=True)] == [
        True
    ] * 6
    assert [prompt.endswith("Assistant: Yes") for prompt in asked] == [True, False] * 3
    assert [result["index"] for result in answer["results"]] == [0, 1]
    assert answer["results"][0]["relevance_score"] == pytest.approx(1 / (1 + math.exp(-ODDS)))
    assert answer["results"][0]["document"] == {"text": "x"}
    assert answer["meta"]["api_version"] == {"version": version}
    assert answer["meta"]["tokens"]["input_tokens"] == answer["usage"]["prompt_tokens"]


async def test_raw_scores_are_log_odds(serve: Serve) -> None:
    answer = await post(await serve(FakeEngine()), "/v1/rerank", Reranked, {**QUERY, "raw_scores": True})
    assert [result["relevance_score"] for result in answer["results"]] == [pytest.approx(ODDS)] * 3


async def test_only_the_beginning_of_each_text_is_read(serve: Serve) -> None:
    engine = FakeEngine()
    body: Body = {"query": "b", "documents": ["éé"], "max_tokens_per_doc": 3}
    await post(await serve(engine), "/v2/rerank", Reranked, body)
    assert "Document: é\n" in prompt_of(engine.requests[0])


async def test_as_text_embeddings_inference(serve: Serve) -> None:
    client = await serve(FakeEngine())
    response = await client.post("/rerank", json={"query": "b", "texts": ["x", "y"], "return_text": True})
    entries = await response.json()
    check_shape(list[TeiRank], entries)
    assert [(entry["index"], entry["text"]) for entry in entries] == [(0, "x"), (1, "y")]


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2, 3]])
async def test_what_is_no_list_of_texts_is_refused(serve: Serve, documents: object) -> None:
    client = await serve(FakeEngine())
    error = await error_of(await client.post("/rerank", json={"query": "b", "documents": documents}), 400)
    assert error["param"].startswith("documents")


async def test_the_demo_model_ranks(demo: Client) -> None:
    documents = ["A cat has four legs.", "The capital of France is Paris."]
    answer = await post(demo, "/v2/rerank", Reranked, {"query": "capital of France", "documents": documents})
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
