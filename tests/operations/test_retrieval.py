"""Vectors and scores of models made for retrieval, through an engine: as their own package has computed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.operations.embedding import EmbeddingSettings, embed, run_states
from rnn_engine.operations.relevance import Relevance, document_tokens, method, relevance_prompts, score_relevance
from rnn_engine.requests import GenerateRequest
from rnn_engine.types import F32, InitialState
from rnn_engine_states.cache.config import CacheConfig
from tests.support.models import random_model, reranker_shape, save_safetensors, tiny_shape
from tests.support.reference import relative_error
from tests.support.retrieval import EMBEDDING, END, NUM_TEXTS, RERANKER, golden, retrieving

RAW = EmbeddingSettings(normalize=False)
DOCUMENTS = ["Rivers run to the sea.", "A cat sleeps on the warm stone by the door, all day long.", "x"]
QUERIES = ["Where do rivers run?", "Who sleeps?"]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]


async def vectors(engine: Engine, inputs: Sequence[Sequence[int]], settings: EmbeddingSettings = RAW) -> F32:
    return np.stack([each.vector for each in await embed(engine, inputs, settings)])


async def log_odds(engine: Engine, pairs: Sequence[tuple[str, str]]) -> F32:
    found = await score_relevance(engine, relevance_prompts(engine, pairs))
    return np.array([each.log_odds for each in found], np.float32)


@pytest.mark.parametrize("device", ["cpu", "auto"])
async def test_vectors_are_those_of_the_package(device: str) -> None:
    inputs = [golden(f"tokens.{number}").tolist() for number in range(NUM_TEXTS)]
    async with retrieving(device) as engine:
        for task in ("retrieval", "similarity", "classification"):
            found = await vectors(engine, inputs, EmbeddingSettings(normalize=False, task=task))
            expected = np.stack([golden(f"{task}.{number}") for number in range(NUM_TEXTS)])
            assert relative_error(found, expected) < 1e-5  # measured: 2e-6
        assert (
            relative_error(await vectors(engine, inputs), np.stack([golden(f"retrieval.{n}") for n in range(4)])) < 1e-5
        )


async def test_the_end_of_the_sentence_is_added_if_it_is_missing() -> None:
    tokens = golden("tokens.1").tolist()
    async with retrieving() as engine:
        [found] = await embed(engine, [tokens[:-1]], RAW)
    assert relative_error(found.vector, golden("retrieval.1")) < 1e-5
    assert found.cost.prompt_tokens == len(tokens)


texts = st.lists(st.integers(1, END), min_size=1, max_size=150)


@settings(max_examples=8)
@given(inputs=st.lists(texts, min_size=1, max_size=5), cut=st.integers(1, 149))
async def test_a_vector_depends_neither_on_others_nor_on_chunks_nor_on_kept_states(
    inputs: list[list[int]], cut: int
) -> None:
    """A text of more than 64 tokens takes several steps. The cache keeps the state after a beginning of each text."""
    async with retrieving(cache=CacheConfig(device_capacity=0)) as engine:
        await vectors(engine, [tokens[:cut] for tokens in inputs])
        continued = await vectors(engine, inputs)
        again = await vectors(engine, inputs)
        await engine.drop_cache()
        together = await vectors(engine, inputs)
    async with retrieving() as engine:
        alone = np.concatenate([await vectors(engine, [tokens]) for tokens in inputs])
    for found in (continued, again, together):
        assert relative_error(found, alone) < 1e-5


async def test_on_a_gpu_too_a_vector_depends_on_its_text_alone() -> None:
    generator = np.random.default_rng(7)
    inputs = [generator.integers(1, END, length).tolist() for length in (1, 150, 64, 90, 3)]
    async with retrieving("auto", cache=CacheConfig()) as engine:
        await vectors(engine, [tokens[:50] for tokens in inputs])
        continued = await vectors(engine, inputs)
        await engine.drop_cache()
        together = await vectors(engine, inputs)
    async with retrieving() as engine:
        alone = np.concatenate([await vectors(engine, [tokens]) for tokens in inputs])
    assert relative_error(continued, alone) < 1e-5
    assert relative_error(together, alone) < 1e-5


@pytest.mark.parametrize("device", ["cpu", "auto"])
async def test_scores_go_on_from_the_states_of_documents(device: str) -> None:
    async with retrieving(device) as engine:
        assert method(engine) == "reranker"
        prompts = relevance_prompts(engine, PAIRS)
        whole = await score_relevance(engine, prompts)
        inputs = [document_tokens(engine, document) for document in DOCUMENTS]
        ends = {number: end async for number, end in run_states(engine, inputs)}
        found: list[Relevance] = []
        for prompt, number in zip(prompts, (0, 1, 2) * 2, strict=True):
            other = replace(prompt, tokens=prompt.tokens[len(inputs[number]) :], num_shared=0, num_document=None)
            state = InitialState(f"document {number}", ends[number].state)
            found += await score_relevance(engine, [other], initial_state=state)
        alone = [await log_odds(engine, [pair]) for pair in PAIRS]
    expected = [each.log_odds for each in whole]
    assert len({round(each, 3) for each in expected}) == len(PAIRS)
    assert [each.log_odds for each in found] == pytest.approx(expected, abs=1e-5)
    assert np.concatenate(alone) == pytest.approx(expected, abs=1e-5)
    assert [each.cost.prompt_tokens for each in found] == [len(f" {query}") + 1 for query, _ in PAIRS]


async def test_a_score_is_what_the_reranker_makes_of_the_state_after_the_pair() -> None:
    """The text is the one of the package's example."""
    text = b"Instruct: Given a query, retrieve documents that answer the query\nDocument: a river\nQuery: b?"
    tokens = [*(byte + 1 for byte in text), END]
    async with retrieving() as engine:
        [(_, end)] = [each async for each in run_states(engine, [tokens])]
        [expected] = await engine.score_states([end.state])
        [found] = await log_odds(engine, [("b?", "a river")])
    assert found == pytest.approx(expected, abs=1e-6)


async def test_the_cache_keeps_the_states_of_documents() -> None:
    async with retrieving(cache=CacheConfig(device_capacity=0)) as engine:
        first = await score_relevance(engine, relevance_prompts(engine, PAIRS[:3]))
        second = await score_relevance(engine, relevance_prompts(engine, PAIRS[3:]))
        for document, found in zip(DOCUMENTS, second, strict=True):
            assert found.cost.cached_tokens == len(document_tokens(engine, document))
        again = await score_relevance(engine, relevance_prompts(engine, PAIRS[:3]))
    assert [each.log_odds for each in again] == pytest.approx([each.log_odds for each in first], abs=1e-5)


async def test_rounded_states_change_scores_little() -> None:
    async with retrieving() as engine:
        exact = await log_odds(engine, PAIRS)
    async with retrieving(cache=CacheConfig(device_capacity=0, host_precision="f16")) as engine:
        await log_odds(engine, PAIRS[3:])
        found = await log_odds(engine, PAIRS)
    assert 0 < np.abs(found - exact).max() < 5e-4  # measured: 1.0e-4; the scores are 0.04 to 0.35


async def test_the_engine_says_what_it_is_for() -> None:
    async with retrieving() as engine:
        info = engine.info.embedding
    assert info is not None
    assert (info.width, info.reranker) == (128, "reranker")
    assert info.tasks == ("retrieval", "similarity", "classification")


async def test_settings_of_other_models_are_refused() -> None:
    async with retrieving() as engine:
        others = EmbeddingSettings(layer=1), EmbeddingSettings(part="wkv"), EmbeddingSettings(pooling="none")
        for field, other in zip(("layer", "part", "pooling"), others, strict=True):
            with pytest.raises(InvalidRequestError, match=rf"{field}: .*has vectors of its own"):
                await embed(engine, [[1]], other)
        with pytest.raises(InvalidRequestError, match=r"task: .*retrieval"):
            await embed(engine, [[1]], EmbeddingSettings(task="poetry"))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match=r"dimensions: 129.*from 1 to 128; the model gives 128 numbers"):
            await embed(engine, [[1]], EmbeddingSettings(dimensions=129))
        with pytest.raises(InvalidRequestError, match=r"input 1: \[\].*at least one token"):
            await embed(engine, [[1], []], RAW)
        with pytest.raises(InvalidRequestError, match=r"input 0: .65 of token 299.*at most 64"):
            await embed(engine, [[END] * 65], RAW)
        with pytest.raises(InvalidRequestError, match="it writes and scores no text"):
            engine.generate(GenerateRequest([1]))


async def test_fewer_numbers() -> None:
    inputs = [golden(f"tokens.{number}").tolist() for number in range(NUM_TEXTS)]
    async with retrieving() as engine:
        short = await vectors(engine, inputs, EmbeddingSettings(dimensions=16))
    assert np.linalg.norm(short, axis=1) == pytest.approx(np.ones(NUM_TEXTS))


async def test_without_a_reranker_there_are_no_scores() -> None:
    async with retrieving(reranker=None) as engine:
        with pytest.raises(InvalidRequestError, match="has no reranker"):
            relevance_prompts(engine, PAIRS)
        with pytest.raises(InvalidRequestError, match="a model that was loaded with a reranker"):
            await engine.score_states([])


async def test_a_reranker_must_fit_its_model(tmp_path: Path, tiny_model: Path) -> None:
    other = save_safetensors(random_model(reranker_shape(tiny_shape()), 1), tmp_path / "other.safetensors")
    shape = reranker_shape(tiny_shape(layers=4, width=128, head_size=64))
    deep = save_safetensors(random_model(shape, 1), tmp_path / "deep.safetensors")
    for model, reranker, message in (
        (
            EMBEDDING,
            other,
            "other.safetensors: the reranker reads states of 4 heads of size 16; the embedding model has 2",
        ),
        (EMBEDDING, deep, r"reads the layers \[0, 1, 2, 3\]; the embedding model has those from 0 to 2"),
        (EMBEDDING, tiny_model, "holds v7; expected a reranker"),
        (EMBEDDING, EMBEDDING, "holds v7-embedding; expected a reranker"),
        (tiny_model, RERANKER, "reads the states of an embedding model"),
        (RERANKER, None, r"reranker\.pth is a reranker; expected an embedding model beside it: MODEL --reranker"),
    ):
        with pytest.raises(ModelError, match=message):
            await Engine.load(model, LoadSettings("cpu", "none", reranker=reranker))
