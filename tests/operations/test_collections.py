"""Collections of models made for embedding, with a reranker and without one."""

from __future__ import annotations

import pytest

from rnn_engine.engine import Engine
from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.collections import add_documents, create_collection, prepare_documents, search_collection
from rnn_engine.operations.relevance import document_tokens, relevance_prompts, score_relevance
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.documents import CollectionLimits, Document, DocumentStore, StoredCollection
from tests.support.retrieval import retrieving

TEXTS = ["Rivers run to the sea.", "A cat sleeps on the warm stone by the door, all day long.", "Bees dance."]
QUERY = "Who sleeps?"


async def filled(engine: Engine, store: DocumentStore) -> tuple[StoredCollection, int]:
    """Return a collection of all texts, and how many tokens were run for it."""
    collection = await create_collection(engine, store, "", "notes")
    documents = [Document(text[:4], text) for text in TEXTS]
    costs = await add_documents(engine, store, collection, prepare_documents(engine, store, collection, documents))
    return collection, sum(cost.prompt_tokens - cost.cached_tokens for cost in costs)


async def test_a_reranker_reads_the_kept_states() -> None:
    store = DocumentStore()
    async with retrieving(cache=CacheConfig()) as engine:
        collection, _ = await filled(engine, store)
        found = await search_collection(engine, store, collection, QUERY)
        pairs = [(QUERY, hit.document.text) for hit in found.hits]
        prompts = relevance_prompts(engine, pairs)
        direct = await score_relevance(engine, prompts)
        begins = sum(len(document_tokens(engine, text)) for text in TEXTS)
    assert found.method == "reranker"
    assert [hit.score for hit in found.hits] == pytest.approx([each.score for each in direct], abs=1e-5)
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)
    query_tokens = len(QUERY) + 1  # with the end of the sentence
    assert found.tokens_run == query_tokens + sum(len(prompt.tokens) for prompt in prompts) - begins
    store.close()


async def test_without_a_reranker_the_nearest_are_found() -> None:
    store = DocumentStore()
    async with retrieving(reranker=None) as engine:
        collection, num_run = await filled(engine, store)
        assert num_run == sum(len(text) + 1 for text in TEXTS)
        found = await search_collection(engine, store, collection, TEXTS[1], top_n=2)
        assert (found.method, found.hits[0].document.text) == (None, TEXTS[1])
        assert found.hits[0].score == pytest.approx(1.0, abs=1e-5)
        with pytest.raises(InvalidRequestError, match="has no reranker"):
            await search_collection(engine, store, collection, QUERY, rerank=True)
    store.close()


async def test_bounds_hold_when_documents_are_added_at_the_same_time() -> None:
    """Two additions that each have room are checked again when they are stored."""
    store = DocumentStore(limits=CollectionLimits(max_collection_documents=3))
    async with retrieving(reranker=None) as engine:
        notes = await create_collection(engine, store, "", "notes")
        first, second, same = (
            prepare_documents(engine, store, notes, [Document(each, f"The text {each}.") for each in ids])
            for ids in ("ab", "cd", "b")
        )
        await add_documents(engine, store, notes, first)
        for new, message in ((second, "max_collection_documents"), (same, "has a document 'b' already")):
            with pytest.raises(InvalidRequestError, match=message):
                await add_documents(engine, store, notes, new)
    assert store.database.read_now(notes.now).num_documents == 2
    store.close()
