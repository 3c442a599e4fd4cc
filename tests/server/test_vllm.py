"""vLLM's own routes."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from rnn_engine_server.apis.rerank import Reranked
from rnn_engine_server.apis.vllm import PoolingList, ScoreList
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Client, Serve, error_of, post


@pytest.mark.parametrize(
    ("body", "pairs"),
    [
        ({"text_1": "q", "text_2": "a"}, ["qa"]),
        ({"text_1": "q", "text_2": ["a", "b"]}, ["qa", "qb"]),
        ({"queries": ["q", "r"], "documents": ["a", "b"]}, ["qa", "rb"]),
        ({"data_1": ["q"], "data_2": ["a", "b"], "truncate_prompt_tokens": -1}, ["qa", "qb"]),
        ({"queries": "q", "items": ["a"], "use_activation": True}, ["qa"]),
    ],
)
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_pairs(serve: Serve, path: str, body: Body, pairs: list[str]) -> None:
    engine = FakeEngine()
    answer = await post(await serve(engine), path, ScoreList, body)
    assert [entry["index"] for entry in answer["data"]] == list(range(len(pairs)))
    prompts = [engine.detokenize(request.prompt).decode() for request in engine.requests[::2]]
    for pair, prompt in zip(pairs, prompts, strict=True):
        assert f"Query: {pair[0]}\nDocument: {pair[1]}\n" in prompt


async def test_version(serve: Serve) -> None:
    answer = await (await serve(FakeEngine())).get("/version")
    assert await answer.json() == {"version": version("rnn-engine")}


async def test_scores_are_those_of_reranking(demo: Client) -> None:
    documents = ["A cat has four legs.", "The capital of France is Paris."]
    scored = await post(demo, "/score", ScoreList, {"text_1": "capital of France", "text_2": documents})
    ranked = await post(demo, "/v1/rerank", Reranked, {"query": "capital of France", "documents": documents})
    by_index = {result["index"]: result["relevance_score"] for result in ranked["results"]}
    assert [entry["score"] for entry in scored["data"]] == [
        pytest.approx(by_index[index], abs=1e-3) for index in (0, 1)
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": "q"}, "text_2"),
        ({"text_1": ["q", "r"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": "q", "text_2": []}, "text_2"),
        ({"text_1": "q", "text_2": [3]}, "text_2"),
        ({"text_1": "q", "text_2": "a", "use_activation": False}, "use_activation"),
    ],
)
async def test_refusals(serve: Serve, body: Body, param: str) -> None:
    error = await error_of(await (await serve(FakeEngine())).post("/score", json=body), 400)
    assert error["param"] == param


@pytest.mark.parametrize("fields", [{}, {"encoding_format": "base64"}, {"dimensions": 8, "task": "embed"}])
async def test_pooled_vectors_are_embeddings(serve: Serve, fields: Body) -> None:
    client = await serve(FakeEngine())
    pooled = await post(client, "/pooling", PoolingList, {"input": ["ab", "c"], **fields})
    fields.pop("task", None)
    listed = await post(client, "/v1/embeddings", EmbeddingList, {"input": ["ab", "c"], **fields})
    assert [entry["data"] for entry in pooled["data"]] == [entry["embedding"] for entry in listed["data"]]
    assert pooled["usage"] == listed["usage"]


async def test_other_tasks_are_refused(serve: Serve) -> None:
    error = await error_of(
        await (await serve(FakeEngine())).post("/pooling", json={"input": "a", "task": "classify"}), 400
    )
    assert error["param"] == "task"
