"""Models made for embedding, and rerankers, over HTTP: in the forms of several APIs, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import numpy as np
import pytest

from rnn_engine_server.apis.common.owned import ListOf
from rnn_engine_server.apis.openai.embeddings import EmbeddingList
from rnn_engine_server.apis.openai.models import ModelEntry
from rnn_engine_server.apis.rerank import Reranked, TeiRank
from rnn_engine_server.apis.tgi import TgiInfo
from rnn_engine_server.apis.vllm import PoolingList, ScoreList
from tests.support.http import Body, Client, Serve, check_shape, error_of, post
from tests.support.reference import relative_error
from tests.support.retrieval import golden, retrieving

TOKENS = golden("tokens.1").tolist()
CHAT: Body = {"messages": [{"role": "user", "content": "Hi"}]}
DOCUMENTS = ["Rivers run to the sea.", "A cat sleeps by the door.", "x"]


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[Client]:
    async with retrieving() as engine:
        yield await serve(engine)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("retrieval", [None, "retrieval", "[RETR]", "retrieval.query"]),
        ("similarity", ["similarity", "[STS]", "text-matching"]),
        ("classification", ["classification", "[CLS]"]),
    ],
)
async def test_a_task_chooses_the_vector(client: Client, task: str, names: list[str | None]) -> None:
    expected = golden(f"{task}.1")
    for name in names:
        body: Body = {"input": TOKENS, "task": name, "normalize": False, "encoding_format": "base64"}
        answer = await post(client, "/v1/embeddings", EmbeddingList, body)
        [entry] = answer["data"]
        found = np.frombuffer(base64.b64decode(entry["embedding"]), np.float32)
        assert relative_error(found, expected) < 1e-5
        assert answer["usage"]["prompt_tokens"] == len(TOKENS)


@pytest.mark.parametrize(
    ("path", "field", "normalize"),
    [
        ("/embed", "inputs", True),
        ("/api/embed", "input", True),
        ("/pooling", "input", True),
        ("/embedding", "content", True),
    ],
)
async def test_other_routes_have_the_same_vectors(client: Client, path: str, field: str, normalize: bool) -> None:
    text = "Rivers run to the sea."
    [entry] = (await post(client, "/v1/embeddings", EmbeddingList, {"input": text}))["data"]
    response = await client.post(path, json={field: text})
    answer = await response.json()
    match answer:
        case {"embeddings": [vector]} | {"data": [{"data": vector}]} | [{"embedding": [vector]}] | [vector]:
            assert vector == pytest.approx(entry["embedding"], abs=1e-6)
        case _:
            pytest.fail(str(answer))


async def test_a_dialect_s_defaults_for_states_do_not_count(client: Client) -> None:
    answer = await post(client, "/api/oai/embeddings", EmbeddingList, {"input": [TOKENS]})
    assert relative_error(np.array(answer["data"][0]["embedding"], np.float32), golden("retrieval.1")) < 1e-5


async def test_every_beginning_has_a_vector(client: Client) -> None:
    response = await client.post("/embed_all", json={"inputs": "ab"})
    [[first, second]] = await response.json()
    texts: Body = {"input": ["a", "ab"], "normalize": False}
    entries = (await post(client, "/v1/embeddings", EmbeddingList, texts))["data"]
    assert first == pytest.approx(entries[0]["embedding"], abs=1e-5)
    assert second == pytest.approx(entries[1]["embedding"], abs=1e-5)


async def test_a_reranker_ranks(client: Client) -> None:
    query = "Where do rivers run?"
    answer = await post(client, "/v2/rerank", Reranked, {"query": query, "documents": DOCUMENTS})
    assert answer["method"] == "reranker"
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    scored = await post(client, "/score", ScoreList, {"text_1": query, "text_2": DOCUMENTS})
    assert [entry["score"] for entry in scored["data"]] == pytest.approx([scores[index] for index in range(3)])
    assert scored["method"] == "reranker"
    response = await client.post("/rerank", json={"query": query, "texts": DOCUMENTS, "raw_scores": True})
    ranks = await response.json()
    check_shape(list[TeiRank], ranks)
    assert 1 / (1 + np.exp(-ranks[0]["score"])) == pytest.approx(max(scores.values()))
    expected = sum(len(f"{text}{query}") for text in DOCUMENTS)
    assert answer["usage"]["prompt_tokens"] > expected


async def test_models_say_what_they_are_for(client: Client) -> None:
    [entry] = (await (await client.get("/v1/models")).json())["data"]
    check_shape(ListOf[ModelEntry], {"object": "list", "data": [entry]})
    tasks = ["retrieval", "similarity", "classification"]
    assert entry["meta"]["embedding"] == {"width": 128, "tasks": tasks, "reranker": "reranker"}
    assert not entry["capabilities"]["completion_chat"]
    info = await (await client.get("/info")).json()
    check_shape(TgiInfo, info)
    assert info["model_type"] == {"embedding": {"pooling": "last_token"}}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/embeddings", {"input": ""}, "input.0", "at least one token"),
        ("/v1/embeddings", {"input": "a", "layer": 1}, "layer", "has vectors of its own"),
        ("/v1/embeddings", {"input": "a", "part": "wkv"}, "part", "has vectors of its own"),
        ("/v1/embeddings", {"input": "a", "task": "poetry"}, "task", "retrieval"),
        ("/v1/embeddings", {"input": "a", "dimensions": 200}, "dimensions", "from 1 to 128"),
        (
            "/v1/embeddings",
            {"input": [{"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "input",
            "the model reads and writes text only",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}]},
            "model",
            "writes and scores no text",
        ),
        ("/v1/completions", {"prompt": "Hi"}, "model", "writes and scores no text"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query", "expected at least 1 character"),
    ],
)
async def test_what_is_refused(client: Client, path: str, body: Body, param: str, words: str) -> None:
    error = await error_of(await client.post(path, json=body), 400)
    assert (error["param"], words in error["message"]) == (param, True), error


async def test_without_a_reranker_ranking_is_refused(serve: Serve) -> None:
    async with retrieving(reranker=None) as engine:
        client = await serve(engine)
        error = await error_of(await client.post("/v1/rerank", json={"query": "a", "documents": ["b"]}), 400)
        assert "has no reranker" in error["message"]


async def test_pooling_takes_tasks(client: Client) -> None:
    body: Body = {"input": TOKENS, "task": "similarity", "normalize": False}
    [entry] = (await post(client, "/pooling", PoolingList, body))["data"]
    assert relative_error(np.array(entry["data"], np.float32), golden("similarity.1")) < 1e-5
