"""Vectors and rankings from Python, of a model made for embedding with its reranker, and of any other model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rnn_engine import LLM
from rnn_engine.errors import InvalidRequestError
from tests.support.models import embedding_shape, random_model, reranker_shape, save_safetensors, tiny_shape
from tests.support.reference import relative_error
from tests.support.retrieval import EMBEDDING, RERANKER, golden

DOCUMENTS = ["The capital of France is Paris.", "A cat has four legs."]


@pytest.fixture(scope="module")
def embedding() -> Iterator[LLM]:
    with LLM(EMBEDDING, device="cpu", tokenizer="none", reranker=RERANKER) as llm:
        yield llm


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """An untrained pair with RWKV World's vocabulary."""
    folder, shape = tmp_path_factory.mktemp("world"), tiny_shape(width=32, vocab=65536)
    model = save_safetensors(random_model(embedding_shape(shape), 1), folder / "model.safetensors")
    reranker = save_safetensors(random_model(reranker_shape(shape), 2), folder / "reranker.safetensors")
    with LLM(model, device="cpu", reranker=reranker) as llm:
        yield llm


@pytest.mark.parametrize("task", ["retrieval", "similarity", "classification"])
def test_a_task_chooses_the_vector(embedding: LLM, task: str) -> None:
    [found] = embedding.embed([golden("tokens.1").tolist()], task=task)  # type: ignore[arg-type]
    expected = golden(f"{task}.1")
    assert relative_error(found, expected / np.linalg.norm(expected)) < 1e-5


def test_texts_need_a_tokenizer(embedding: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="tokenizer"):
        embedding.rerank("a?", DOCUMENTS)


def test_any_model_ranks(llm: LLM) -> None:
    ranked = llm.rerank("What is the capital of France?", DOCUMENTS)
    assert sorted(each.index for each in ranked) == [0, 1]
    assert ranked[0].score >= ranked[1].score
    assert ranked[0].text == DOCUMENTS[ranked[0].index]
    assert {each.method for each in ranked} == {"yes_no"}
    assert [each.index for each in llm.rerank("What is the capital of France?", DOCUMENTS, top_n=1)] == [
        ranked[0].index
    ]
    assert llm.rerank("a?", []) == []


def test_empty_texts_and_tasks_of_other_models_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"documents\.1: "):
        llm.rerank("a?", ["b", " "])
    with pytest.raises(InvalidRequestError, match="query: "):
        llm.rerank("", ["b"])
    with pytest.raises(InvalidRequestError, match=r"task: .*was not made for embedding"):
        llm.embed(["a"], task="similarity")


def test_a_collection_is_ranked_from_kept_states(world: LLM) -> None:
    notes = world.collection("capitals")
    notes.add(DOCUMENTS)
    found = notes.query("What is the capital of France?")
    assert (len(found.hits), found.method) == (2, "reranker")
    scores = {hit.document.text: hit.score for hit in found.hits}
    ranked = world.rerank("What is the capital of France?", DOCUMENTS)
    assert scores == pytest.approx({each.text: each.score for each in ranked}, abs=1e-5)
    query = len(world.engine.tokenize(" What is the capital of France?")) + 1
    vector = len(world.engine.tokenize("What is the capital of France?")) + 1
    assert found.tokens_run == vector + len(DOCUMENTS) * query
