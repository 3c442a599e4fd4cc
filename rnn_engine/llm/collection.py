"""`Collection`, documents that a model can search, and `AsyncCollection`, its twin for programs that use asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from rnn_engine.errors import check_list
from rnn_engine.interface import EngineLike
from rnn_engine.llm.blocking import Blocking, Run, blocking
from rnn_engine.operations.collections import (
    DEFAULT_CANDIDATES,
    DEFAULT_TOP_N,
    MAX_ADDED,
    Search,
    add_documents,
    prepare_documents,
    search_collection,
)
from rnn_engine_states.documents import Document, DocumentStore, StoredCollection

DocumentLike: TypeAlias = Document | str | Mapping[str, object]
"""A document, its text, or a mapping with `text` and, if wanted, `id` and `metadata`."""

_PAGE = 1000  # documents that are read at a time


class _StoredDocuments:
    """The part of a collection that runs no model: it reads and removes documents."""

    def __init__(self, store: DocumentStore, stored: StoredCollection) -> None:
        self._store = store
        self._stored = stored

    @property
    def name(self) -> str:
        """The name under which the collection is found again."""
        return self._stored.name

    def get(self, document_id: str) -> Document:
        """Return the document with this id. Raises NotFoundError if there is none."""
        return self._store.database.read_now(lambda db: self._stored.get(db, document_id))

    def remove(self, ids: Sequence[str]) -> list[str]:
        """Remove the documents with these ids, and return the ids that there were."""
        check_list("ids", ids, "a list of ids")
        removed = list[str]()
        while ids:
            found, ids = self._store.database.write_now(partial(self._stored.remove, ids=ids), frees=True)
            removed += found
        return removed

    def delete(self) -> None:
        """Delete the collection with all of its documents."""
        delete = partial(self._store.delete, owner=self._stored.owner, name=self.name)
        self._store.database.write_now(delete, frees=True)

    def __len__(self) -> int:
        return self._store.database.read_now(self._stored.now).num_documents

    def __iter__(self) -> Iterator[Document]:
        """Yield all documents, in the order in which they were added. Change none meanwhile."""
        after, has_more = None, True
        while has_more:
            rows, has_more = self._store.database.read_now(partial(self._stored.page, after=after, limit=_PAGE))
            page = self._store.database.read_now(partial(self._stored.read, rows=[row.row for row in rows]))
            yield from page.values()
            after = page[rows[-1].row].id if rows else None


class AsyncCollection(_StoredDocuments):
    """Documents under ids, which queries find by their vectors and then order by how well they answer.

    `AsyncLLM.collection` makes one. Documents are run once when they are added; the cache keeps the states after them,
    and a query runs its own tokens alone.
    """

    def __init__(self, engine: EngineLike, store: DocumentStore, stored: StoredCollection) -> None:
        """Search and change the collection `stored` of a `store`, whose vectors the model of `engine` makes."""
        super().__init__(store, stored)
        self._engine = engine

    async def add(self, documents: Sequence[DocumentLike], *, replace: bool = False) -> list[str]:
        """Add documents, and return their ids: those given, or else random ones.

        They are stored in parts of 2,048, each as a whole. With `replace`, they replace documents with the same ids.
        Raises InvalidRequestError before a part runs: for empty texts, ids that are known or given twice, and if there
        is no room. Raises StorageError if the collection can't be written.
        """
        check_list("documents", documents, "a list of texts, mappings with a `text`, or documents")
        parsed = [
            each if isinstance(each, Document) else Document.parse(each, f"documents.{number}")
            for number, each in enumerate(documents)
        ]
        for start in range(0, len(parsed), MAX_ADDED):
            part = parsed[start : start + MAX_ADDED]
            prepare = partial(prepare_documents, self._engine, self._store, self._stored, part, replace_known=replace)
            await add_documents(self._engine, self._store, self._stored, await asyncio.to_thread(prepare))
        return [document.id for document in parsed]

    async def query(
        self,
        query: str,
        *,
        top_n: int = DEFAULT_TOP_N,
        candidates: int = DEFAULT_CANDIDATES,
        rerank: bool | None = None,
    ) -> Search:
        """Return the `top_n` documents that answer a query best, the best first.

        The nearest `candidates` by vector are reranked by how well they answer the query. If `rerank` is false, or the
        model was made for embedding and has no reranker, the nearest are returned. The result also says how they were
        reranked, how long that took and how many tokens were run.
        Raises InvalidRequestError.
        """
        return await search_collection(
            self._engine, self._store, self._stored, query, top_n=top_n, candidates=candidates, rerank=rerank
        )


class Collection(_StoredDocuments, Blocking[AsyncCollection]):
    """Documents under ids, which queries find by their vectors and then order by how well they answer.

        animals = llm.collection("animals")
        animals.add(["A cat has four legs.", {"id": "spider", "text": "A spider has eight.", "metadata": {"page": 2}}])
        for hit in animals.query("How many legs does a spider have?").hits:
            print(hit.score, hit.document.text)

    `LLM.collection` makes one. Documents are run once when they are added; the cache keeps the states after them, and a
    query runs its own tokens alone.
    """

    def __init__(self, twin: AsyncCollection, run: Run) -> None:
        """Wrap the `twin`; `run` runs a coroutine on the twin's event loop and returns its result."""
        _StoredDocuments.__init__(self, twin._store, twin._stored)
        Blocking.__init__(self, twin, run)

    add = blocking(AsyncCollection.add)
    query = blocking(AsyncCollection.query)
