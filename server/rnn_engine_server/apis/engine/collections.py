"""Routes for named collections of documents: make, list and delete them, add documents, and search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from aiohttp import web
from pydantic import FailFast, Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.operations.collections import (
    DEFAULT_CANDIDATES,
    DEFAULT_TOP_N,
    MAX_CANDIDATES,
    Search,
    add_documents,
    create_collection,
    prepare_documents,
    search_collection,
)
from rnn_engine.operations.relevance import Method
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import check_prompts
from rnn_engine_server.apis.common.states import ModelNameBody
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.auth.engine import engine_of
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import json_response, long_json_response, query_count, read_body
from rnn_engine_server.core.routing import SETTINGS, Route
from rnn_engine_server.core.schema import STRING, RefusedError, RequestBody, Usage
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.core.workers import CALL_WORK, work
from rnn_engine_states.documents import Document, DocumentStore, StoredCollection

COLLECTIONS = web.AppKey("collections", DocumentStore)
"""The collections of all API keys."""

_MOST_LISTED = 1000  # documents of a page


def _parse_documents(value: object) -> list[Document]:
    if not isinstance(value, list) or not value:
        raise RefusedError(value, "a list of texts, or of objects with a `text`, at least one")
    return [Document.parse(document, f"documents.{number}") for number, document in enumerate(value)]


_DOCUMENT_SCHEMA = {
    "anyOf": [
        STRING,
        {
            "type": "object",
            "required": ["text"],
            "properties": {"text": STRING, "id": STRING, "metadata": {"type": "object"}},
        },
    ]
}
Documents: TypeAlias = Annotated[
    list[Document], PlainValidator(_parse_documents), WithJsonSchema({"type": "array", "items": _DOCUMENT_SCHEMA})
]


class CreateCollectionRequest(ModelNameBody):
    """A request to make an empty collection for documents, whose vectors the model will make."""

    name: str = Field(description="A name that is free: 1 to 128 printable characters without slashes.")


class AddDocumentsRequest(ModelNameBody):
    """A request to add documents to a collection: all or none."""

    documents: Documents = Field(
        description="Texts, or objects with `text` and, if wanted, `id` (else one is made) and `metadata`, an object "
        "that is returned with the document."
    )
    replace: bool = Field(default=False, description="Replace documents with the same ids, instead of refusing them.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_inputs", "documents", len(self.documents))
        check_prompts(limits, "documents", [document.text for document in self.documents])


class RemoveDocumentsRequest(RequestBody):
    """A request to remove documents from a collection."""

    always_strict: ClassVar = True

    ids: Annotated[list[str], FailFast()] = Field(
        min_length=1, max_length=100_000, description="The ids of the documents. Unknown ones make no difference."
    )


class QueryRequest(ModelNameBody):
    """A request for the documents of a collection that answer a query best. The nearest `candidates` by vector are
    reranked by how well they answer it: by the reranker of a model made for embedding, or else by P(Yes) / (P(Yes) +
    P(No)), as for /v1/rerank."""

    query: str = Field(min_length=1, description="The query.")
    top_n: int = Field(default=DEFAULT_TOP_N, ge=1, le=MAX_CANDIDATES, description="How many documents are returned.")
    candidates: int = Field(
        default=DEFAULT_CANDIDATES,
        ge=1,
        le=MAX_CANDIDATES,
        description="How many documents, the nearest by vector, are reranked; at least `top_n` are.",
    )
    rerank: bool | None = Field(
        default=None,
        description="Rerank the candidates. False: the nearest are returned. Null: true, unless the model was made for "
        "embedding and has no reranker.",
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        check_prompts(limits, "query", [self.query])


class CollectionEntry(TypedDict):
    """A collection. `bytes` is what it takes on disk, or in memory if it is not `persistent`."""

    object: Literal["collection"]
    name: str
    model: str
    created: int
    documents: int
    bytes: int
    persistent: bool


class CollectionEntries(TypedDict):
    """The collections of the API key, ordered by name."""

    object: Literal["list"]
    data: list[CollectionEntry]


class CollectionDeleted(TypedDict):
    object: Literal["collection.deleted"]
    name: str
    deleted: Literal[True]


class DocumentEntry(TypedDict):
    """A document of a collection. `tokens` is the length of its text."""

    id: str
    text: str
    metadata: dict[str, Any]
    tokens: int


class DocumentEntries(TypedDict):
    """Documents in the order in which they were added. If `has_more`, the id of the last is `after` for the next."""

    object: Literal["list"]
    data: list[DocumentEntry]
    has_more: bool


class DocumentsAdded(TypedDict):
    """The answer to a request to add documents. `ids` are in the order of the request."""

    object: Literal["collection.documents.added"]
    ids: list[str]
    usage: Usage


class DocumentsRemoved(TypedDict):
    """The answer to a request to remove documents. `ids` are those that there were."""

    object: Literal["collection.documents.deleted"]
    ids: list[str]


class QueryHit(TypedDict):
    """A document that a query found. `similarity` is the cosine between the vectors of document and query, `relevance`
    how well the document answers the query, from 0 to 1, and null if it was not reranked. `score` is that one of the
    two by which the documents are ordered.
    """

    id: str
    text: str
    metadata: dict[str, Any]
    score: float
    similarity: float
    relevance: float | None


class QueryAnswer(TypedDict):
    """The documents that answer a query best, the best first.

    `method` says how they were reranked: by a `reranker`, or by the probabilities of Yes and No; null if they were not.
    `search_ms` is the time for the vector of the query and the nearest documents, `rerank_ms` that for their relevance.
    `tokens_run` were run by the model; `usage` also counts the cached tokens, whose states had been kept.
    """

    object: Literal["collection.query"]
    collection: str
    model: str
    method: Method | None
    results: list[QueryHit]
    search_ms: float
    rerank_ms: float
    tokens_run: int
    usage: Usage


async def list_collections(request: web.Request) -> web.Response:
    store, owner = request.app[COLLECTIONS], request[PRINCIPAL].name

    def make() -> CollectionEntries:
        return {"object": "list", "data": [_entry(store, each) for each in store.of_owner(owner)]}

    return json_response(await asyncio.to_thread(make))


async def create(request: web.Request) -> web.Response:
    body = await read_body(request, CreateCollectionRequest)
    store = request.app[COLLECTIONS]
    engine, owner = engine_of(request), request[PRINCIPAL].name
    made = await asyncio.to_thread(create_collection, engine, store, owner, body.name)
    return json_response(await asyncio.to_thread(_entry, store, made))


async def get(request: web.Request) -> web.Response:
    return json_response(await asyncio.to_thread(_entry, request.app[COLLECTIONS], _collection(request)))


async def delete(request: web.Request) -> web.Response:
    name = request.match_info["collection"]
    await asyncio.to_thread(request.app[COLLECTIONS].delete, request[PRINCIPAL].name, name)
    answer: CollectionDeleted = {"object": "collection.deleted", "name": name, "deleted": True}
    return json_response(answer)


async def add(request: web.Request) -> web.Response:
    body = await read_body(request, AddDocumentsRequest)
    engine, collection = engine_of(request), _collection(request)
    prepare = partial(
        prepare_documents,
        engine,
        request.app[COLLECTIONS],
        collection,
        body.documents,
        replace_known=body.replace,
    )
    size = sum(len(document.text) for document in body.documents) + CALL_WORK * len(body.documents)
    new = await work(request, size, prepare)
    request.app[SETTINGS].limits.check("max_prompt_tokens", "documents", new.num_tokens)
    costs = await add_documents(engine, collection, new)
    answer: DocumentsAdded = {
        "object": "collection.documents.added",
        "ids": [document.id for document in new.documents],
        "usage": usage_of(costs),
    }
    return json_response(answer)


async def list_documents(request: web.Request) -> web.Response:
    collection = _collection(request)
    limit = query_count(request, "limit", 100, _MOST_LISTED)
    documents, has_more = await asyncio.to_thread(collection.page, request.query.get("after"), limit)
    size = sum(len(document.text) for document in documents)

    def make() -> DocumentEntries:
        return {"object": "list", "data": list(map(_document_entry, documents)), "has_more": has_more}

    return await long_json_response(request, size, make)


async def get_document(request: web.Request) -> web.Response:
    found = await asyncio.to_thread(_collection(request).get, request.match_info["id"])
    return json_response(_document_entry(found))


async def remove_document(request: web.Request) -> web.Response:
    collection, document_id = _collection(request), request.match_info["id"]
    await asyncio.to_thread(collection.get, document_id)  # raises NotFoundError
    return await _remove(collection, [document_id])


async def remove_documents(request: web.Request) -> web.Response:
    body = await read_body(request, RemoveDocumentsRequest)
    return await _remove(_collection(request), body.ids)


async def query(request: web.Request) -> web.Response:
    body = await read_body(request, QueryRequest)
    engine, collection = engine_of(request), _collection(request)
    found = await search_collection(
        engine,
        request.app[COLLECTIONS],
        collection,
        body.query,
        top_n=body.top_n,
        candidates=body.candidates,
        rerank=body.rerank,
        max_tokens=request.app[SETTINGS].limits.max_prompt_tokens,
    )
    size = sum(len(hit.document.text) for hit in found.hits)
    make = partial(_query_answer, collection.facts.name, engine.info.model, found)
    return await long_json_response(request, size, make)


def _collection(request: web.Request) -> StoredCollection:
    return request.app[COLLECTIONS].get(request[PRINCIPAL].name, request.match_info["collection"])


async def _remove(collection: StoredCollection, ids: Sequence[str]) -> web.Response:
    removed = await asyncio.to_thread(collection.remove, ids)
    answer: DocumentsRemoved = {"object": "collection.documents.deleted", "ids": removed}
    return json_response(answer)


def _entry(store: DocumentStore, collection: StoredCollection) -> CollectionEntry:
    return {
        "object": "collection",
        "name": collection.facts.name,
        "model": collection.facts.model_name,
        "created": int(collection.facts.created),
        "documents": collection.num_documents,
        "bytes": collection.num_bytes,
        "persistent": store.persistent,
    }


def _document_entry(document: Document) -> DocumentEntry:
    return {
        "id": document.id,
        "text": document.text,
        "metadata": dict(document.metadata),
        "tokens": document.num_tokens,
    }


def _query_answer(name: str, model: str, found: Search) -> QueryAnswer:
    return {
        "object": "collection.query",
        "collection": name,
        "model": model,
        "method": found.method,
        "results": [
            {
                "id": hit.document.id,
                "text": hit.document.text,
                "metadata": dict(hit.document.metadata),
                "score": hit.score,
                "similarity": hit.similarity,
                "relevance": hit.relevance,
            }
            for hit in found.hits
        ],
        "search_ms": 1000 * found.search_seconds,
        "rerank_ms": 1000 * found.rerank_seconds,
        "tokens_run": found.tokens_run,
        "usage": usage_of(found.costs),
    }


_ALL = "/v1/collections"
_ONE = f"{_ALL}/{{collection}}"
_DOCUMENTS = f"{_ONE}/documents"
_DOCUMENT = f"{_DOCUMENTS}/{{id}}"

ROUTES = (
    Route(
        "GET",
        _ALL,
        list_collections,
        "The collections of documents.",
        CollectionEntries,
        uses_model=False,
    ),
    Route(
        "POST",
        _ALL,
        create,
        "Make an empty collection of documents.",
        CollectionEntry,
        request=CreateCollectionRequest,
        scope=Scope.MANAGE,
    ),
    Route("GET", _ONE, get, "A collection of documents.", CollectionEntry, uses_model=False),
    Route(
        "DELETE",
        _ONE,
        delete,
        "Delete a collection with all of its documents.",
        CollectionDeleted,
        scope=Scope.MANAGE,
        uses_model=False,
    ),
    Route(
        "GET",
        _DOCUMENTS,
        list_documents,
        "The documents of a collection.",
        DocumentEntries,
        query={
            "limit": f"How many documents to return: 100 by default, at most {_MOST_LISTED}.",
            "after": "The id of a document: return only those after it.",
        },
        uses_model=False,
    ),
    Route(
        "POST",
        _DOCUMENTS,
        add,
        "Add documents to a collection. The model runs each once for its vector and once for a state that is kept.",
        DocumentsAdded,
        request=AddDocumentsRequest,
        scope=Scope.MANAGE,
    ),
    Route(
        "POST",
        f"{_DOCUMENTS}/delete",
        remove_documents,
        "Remove documents from a collection.",
        DocumentsRemoved,
        request=RemoveDocumentsRequest,
        scope=Scope.MANAGE,
        uses_model=False,
    ),
    Route(
        "GET",
        _DOCUMENT,
        get_document,
        "One document of a collection.",
        DocumentEntry,
        uses_model=False,
    ),
    Route(
        "DELETE",
        _DOCUMENT,
        remove_document,
        "Remove one document from a collection.",
        DocumentsRemoved,
        scope=Scope.MANAGE,
        uses_model=False,
    ),
    Route(
        "POST",
        f"{_ONE}/query",
        query,
        "The documents of a collection that answer a query best.",
        QueryAnswer,
        request=QueryRequest,
    ),
)
