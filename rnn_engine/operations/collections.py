"""Add documents to a collection and search it: nearest by vector, then ordered by how well they answer the query.

The states after the documents are not passed around here. Adding runs, for each document, the tokens with which every
prompt about it begins. The state cache keeps the state after them, in any of its tiers. A query then runs its own
tokens only. If a state was evicted, the document's tokens are run again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from rnn_engine.errors import InvalidRequestError, check_text, check_whole
from rnn_engine.interface import EngineLike
from rnn_engine.operations.embedding import EmbeddingSettings, embed
from rnn_engine.operations.parallel import Cost, ParallelRequests
from rnn_engine.operations.relevance import Method, document_tokens, method, relevance_prompts, score_relevance
from rnn_engine.requests import GenerateRequest, Started
from rnn_engine_states.documents import Document, DocumentStore, NewDocument, StoredCollection

T = TypeVar("T")

MAX_ADDED = 2048  # documents that are added at a time
MAX_CANDIDATES = 1024  # of one query
MAX_CANDIDATE_TOKENS = 1 << 20  # of their texts, which are run if their states were evicted
DEFAULT_TOP_N = 10
DEFAULT_CANDIDATES = 20

_SETTINGS = EmbeddingSettings()


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that a search found."""

    document: Document
    similarity: float  # the cosine between the vectors of query and document
    relevance: float | None  # how well it answers the query, from 0 to 1; None if it was not reranked

    @property
    def score(self) -> float:
        """The number by which the hits are ordered: the relevance, or else the similarity."""
        return self.similarity if self.relevance is None else self.relevance


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search: the documents found, how they were ordered, and what that took."""

    hits: tuple[Hit, ...]  # the best first
    method: Method | None  # by which they were reranked; None = they were not
    search_seconds: float  # for the vector of the query, and its nearest
    rerank_seconds: float
    costs: tuple[Cost, ...]  # of all that was run or found in the cache

    @property
    def tokens_run(self) -> int:
        """The number of tokens that the model ran; those whose states had been kept are not among them."""
        return sum(cost.prompt_tokens - cost.cached_tokens for cost in self.costs)


@dataclass(frozen=True, slots=True)
class NewDocuments:
    """Documents that were checked and tokenized, to be added to a collection."""

    documents: tuple[NewDocument, ...]
    inputs: tuple[Sequence[int], ...]  # the tokens of each one's text, for its vector
    begins: tuple[Sequence[int], ...]  # the tokens with which all prompts about each one begin; () = there are none
    replace_known: bool

    @property
    def num_tokens(self) -> int:
        """The number of tokens that are run at most, without the examples that all prompts share."""
        return 2 * sum(map(len, self.inputs))


class OnThread(Protocol):
    """A function that has a thread call another one, such as `asyncio.to_thread`."""

    def __call__(self, function: Callable[[], T], /) -> Coroutine[Any, Any, T]: ...


async def create_collection(engine: EngineLike, store: DocumentStore, owner: str, name: str) -> StoredCollection:
    """Create an empty collection for the engine's model. Raises as `DocumentStore.create` does."""
    model = engine.state_files.model, engine.info.model
    return await store.database.write(lambda transaction: store.create(transaction, owner, name, *model), owner)


def prepare_documents(
    engine: EngineLike,
    store: DocumentStore,
    collection: StoredCollection,
    documents: Sequence[Document],
    *,
    replace_known: bool = False,
) -> NewDocuments:
    """Check documents for a collection, and tokenize them. Blocks meanwhile.

    Raises InvalidRequestError for bad documents or ids given twice, for known ids unless `replace_known` is set, for a
    collection of another model, and if there is no room.
    """
    _check_model(engine, collection)
    if not 1 <= len(documents) <= MAX_ADDED:
        raise InvalidRequestError("documents", len(documents), f"1 to {MAX_ADDED} documents at a time")
    size = _SETTINGS.size(engine.info.shape)
    prepared = [document.prepare(f"documents.{number}", size) for number, document in enumerate(documents)]
    [(commonest, times)] = Counter(document.id for document in documents).most_common(1)
    if times > 1:
        raise InvalidRequestError(
            "documents", commonest, f"ids that are all different; {times} documents have this one"
        )
    store.database.read_now(lambda db: store.check_new(db, collection, prepared, replace=replace_known))
    inputs = [engine.tokenize(document.text) for document in documents]
    return NewDocuments(
        tuple(document._replace(num_tokens=len(tokens)) for document, tokens in zip(prepared, inputs, strict=True)),
        tuple(inputs),
        tuple(document_tokens(engine, document.text) for document in documents) if _can_rerank(engine) else (),
        replace_known,
    )


async def add_documents(
    engine: EngineLike, store: DocumentStore, collection: StoredCollection, new: NewDocuments
) -> list[Cost]:
    """Run prepared documents and add them to a collection, all or none. Return the token counts of what was run.

    Each document is run twice: for its vector, and for the state that the cache keeps for queries. Raises NotFoundError
    if the collection is deleted meanwhile, StorageError if it can't be written, and InvalidRequestError if other
    requests have added documents with the same ids meanwhile, or have taken the room.
    """
    embedded = await embed(engine, new.inputs, _SETTINGS)
    costs = [each.cost for each in embedded] + await _keep_states(engine, new.begins)
    vectors = np.stack([each.vector for each in embedded])
    put = partial(store.put, collection=collection, documents=new.documents, vectors=vectors, replace=new.replace_known)
    await store.database.write(put, collection.owner)
    return costs


async def search_collection(
    engine: EngineLike,
    store: DocumentStore,
    collection: StoredCollection,
    query: str,
    *,
    top_n: int = DEFAULT_TOP_N,
    candidates: int = DEFAULT_CANDIDATES,
    rerank: bool | None = None,
    max_tokens: int = MAX_CANDIDATE_TOKENS,
    on_thread: OnThread = asyncio.to_thread,
    hold: Callable[[int], object] = bool,
) -> Search:
    """Return the `top_n` documents of a collection that answer the query best.

    The vector of the query finds the nearest `candidates`, which are then ordered by their relevance. If `rerank` is
    false, the nearest are the result; by default, they are if the model can't rerank, since it was made for embedding
    and has no reranker. `on_thread` is told what blocks, and `hold` the bytes of the documents before they are read.
    Raises InvalidRequestError for an empty query, for a collection of another model, if the model can't rerank, and if
    the candidates have more than `max_tokens` tokens. Raises NotFoundError if the collection is deleted meanwhile.
    """
    _check_model(engine, collection)
    check_whole("top_n", top_n, 1, MAX_CANDIDATES)
    check_whole("candidates", candidates, 1, MAX_CANDIDATES)
    check_text(query)
    if not query.strip():
        raise InvalidRequestError("query", query, "a text that is not empty")
    if rerank is None:
        rerank = _can_rerank(engine)
    how = method(engine) if rerank else None
    begun = time.perf_counter()
    tokens = await on_thread(partial(engine.tokenize, query))
    [embedded] = await embed(engine, [tokens], _SETTINGS)
    count = max(candidates, top_n) if rerank else top_n
    nearest = await on_thread(partial(store.nearest, collection, embedded.vector, count))
    if rerank and (num_tokens := sum(row.num_tokens for row, _ in nearest)) > max_tokens:
        allowed = f"as few as have {max_tokens} tokens together, not {num_tokens}"
        raise InvalidRequestError("candidates", count, allowed)
    hold(sum(row.num_bytes for row, _ in nearest))
    read = partial(collection.read, rows=[row.row for row, _ in nearest])
    documents = await on_thread(partial(store.database.read_now, read))
    found = time.perf_counter()
    hits = [Hit(documents[row.row], similarity, None) for row, similarity in nearest if row.row in documents]
    costs = [embedded.cost]
    if rerank and hits:
        pairs = [(query, hit.document.text) for hit in hits]
        prompts = await on_thread(partial(relevance_prompts, engine, pairs, document_first=True))
        relevances = await score_relevance(engine, prompts)
        costs += [each.cost for each in relevances]
        hits = [replace(hit, relevance=each.score) for hit, each in zip(hits, relevances, strict=True)]
        hits.sort(key=lambda hit: -hit.score)
    return Search(tuple(hits[:top_n]), how, found - begun, time.perf_counter() - found, tuple(costs))


async def _keep_states(engine: EngineLike, begins: Sequence[Sequence[int]]) -> list[Cost]:
    """Run the beginnings of prompts, so that the cache keeps the states after them, and return their token counts."""
    calls = [GenerateRequest(prompt=tokens, max_tokens=0) for tokens in begins]
    costs: list[Cost] = []
    async with ParallelRequests(engine, calls, engine.info.num_slots, wait_for_room=True) as running:
        async for events in running:
            costs += [
                Cost(event.prompt_tokens, event.cached_tokens) for _, event in events if isinstance(event, Started)
            ]
    return costs


def _can_rerank(engine: EngineLike) -> bool:
    info = engine.info.embedding
    return info is None or info.reranker is not None


def _check_model(engine: EngineLike, collection: StoredCollection) -> None:
    """Raise InvalidRequestError if the vectors of the collection are those of another model."""
    if collection.model != engine.state_files.model:
        raise InvalidRequestError(
            "collection",
            collection.name,
            f"a collection of the model {engine.info.model!r}; the vectors of this one were made by "
            f"{collection.model_name!r}, or by another file of that name",
        )
