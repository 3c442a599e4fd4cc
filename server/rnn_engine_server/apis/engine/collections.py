"""Routes for named collections of documents: make, list and delete them, add documents, and search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from sqlite3 import Connection
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.database import Transaction
from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.collections import (
    DEFAULT_CANDIDATES,
    DEFAULT_TOP_N,
    MAX_CANDIDATES,
    Hit,
    OnThread,
    Search,
    add_documents,
    create_collection,
    prepare_documents,
    search_collection,
)
from rnn_engine.operations.relevance import Method
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import PromptText, check_inputs
from rnn_engine_server.apis.common.owned import ALL_OWNERS, OWNER_QUERY, PageOf, PartOf, listed_owner, page_of
from rnn_engine_server.apis.common.states import ModelNameBody
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_count
from rnn_engine_server.core.call import CALL_WORK, SHORT_WORK, Call, work
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.routing import AppKey
from rnn_engine_server.core.schema import STRING, Bounded, Parsed, RefusedError, RequestBody, Usage, described
from rnn_engine_server.store.owners import Page
from rnn_engine_states.documents import Document, DocumentStore, StoredCollection

T = TypeVar("T")

COLLECTIONS = AppKey("collections", DocumentStore)
"""The collections of all API keys."""

_MOST_LISTED = 10_000  # collections of a page
_MOST_DOCUMENTS = 1000  # of a page
_ENTRY_BYTES = 1000  # that a collection takes in memory with its part of an answer
_TIMES_HELD = 4  # bytes in memory for each of a stored document: its text, its JSON, and copies of both


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
    list[Document],
    Parsed(_parse_documents, {"type": "array", "items": _DOCUMENT_SCHEMA}),
    Bounded(lambda limits, field, documents: check_inputs(limits, field, [document.text for document in documents])),
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

    query: PromptText = Field(min_length=1, description="The query.")
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


class CollectionEntry(TypedDict):
    """A collection. `bytes` is what its documents take on disk, or in memory if it is not `persistent`; `owner` is the
    API key that made it, empty without keys."""

    object: Literal["collection"]
    id: str
    name: str
    owner: str
    model: str
    created: int
    documents: int
    bytes: int
    persistent: bool


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


_OF = {"owner": "For the scope `admin` alone: the name of the API key whose collection is meant."}
_PAGE = {
    "limit": f"How many documents to return: 100 by default, at most {_MOST_DOCUMENTS}.",
    "after": "The id of a document: return only those after it.",
    **_OF,
}
_LIST = {
    "limit": f"How many collections to return: {_MOST_LISTED} by default and at most.",
    "after": "The id of a collection: return only those after it.",
    **OWNER_QUERY,
}

ROUTES = RouteTable()


@ROUTES.get("/v1/collections", query=_LIST, uses_model=False)
async def list_collections(call: Call) -> Long[PageOf[CollectionEntry]]:
    """The collections of documents."""
    store, limit = call.app[COLLECTIONS], query_count(call, "limit", _MOST_LISTED, _MOST_LISTED)
    page = partial(store.page, owner=listed_owner(call), after=call.query.get("after"), limit=limit)
    found, has_more = await _read(call, page)
    call.hold_more("the list", _ENTRY_BYTES * len(found))

    def make() -> PageOf[CollectionEntry]:
        return page_of(Page(found, has_more), partial(_entry, store))

    return Long(CALL_WORK * len(found), make)


@ROUTES.post("/v1/collections", scope=Scope.MANAGE)
async def create(call: Call, body: CreateCollectionRequest) -> CollectionEntry:
    """Make an empty collection of documents."""
    store = call.app[COLLECTIONS]
    made = await create_collection(call.engine, store, call.principal.name, body.name)
    return _entry(store, made)


@ROUTES.get("/v1/collections/{collection}", query=_OF, uses_model=False)
async def get(call: Call) -> CollectionEntry:
    """A collection of documents."""
    return _entry(call.app[COLLECTIONS], await _collection(call))


@ROUTES.delete("/v1/collections/{collection}", query=_OF, scope=Scope.MANAGE, uses_model=False)
async def delete(call: Call) -> CollectionDeleted:
    """Delete a collection with all of its documents."""
    store, name = call.app[COLLECTIONS], call.parameters["collection"]
    await _free(call, partial(store.delete, owner=_owner(call), name=name))
    return {"object": "collection.deleted", "name": name, "deleted": True}


@ROUTES.post("/v1/collections/{collection}/documents", query=_OF, scope=Scope.MANAGE)
async def add(call: Call, body: AddDocumentsRequest) -> DocumentsAdded:
    """Add documents to a collection.

    The model runs each once for its vector and once for a state that is kept.
    """
    engine, store, collection = call.engine, call.app[COLLECTIONS], await _collection(call)
    prepare = partial(prepare_documents, engine, store, collection, body.documents, replace_known=body.replace)
    new = await _on_thread(call)(prepare)
    call.limits.check("max_prompt_tokens", "documents", new.num_tokens)
    costs = await add_documents(engine, store, collection, new)
    return {
        "object": "collection.documents.added",
        "ids": [document.id for document in new.documents],
        "usage": usage_of(costs),
    }


@ROUTES.get("/v1/collections/{collection}/documents", query=_PAGE, uses_model=False)
async def list_documents(call: Call) -> Long[PartOf[DocumentEntry]]:
    """The documents of a collection, in the order in which they were added.

    They are fewer than `limit` if they are large.
    """
    collection, limit = await _collection(call), query_count(call, "limit", 100, _MOST_DOCUMENTS)
    rows, has_more = await _read(call, partial(collection.page, after=call.query.get("after"), limit=limit))
    num_bytes = sum(row.num_bytes for row in rows)
    _hold(call, num_bytes)

    def make() -> PartOf[DocumentEntry]:
        read = partial(collection.read, rows=[row.row for row in rows])
        documents = call.app[COLLECTIONS].database.read_now(read).values()
        return {"object": "list", "data": list(map(_document_entry, documents)), "has_more": has_more}

    return Long(SHORT_WORK + 1 + num_bytes, make)


@ROUTES.get("/v1/collections/{collection}/documents/{id}", query=_OF, uses_model=False)
async def get_document(call: Call) -> Long[DocumentEntry]:
    """One document of a collection."""
    collection, document_id = await _collection(call), call.parameters["id"]
    found = await _read(call, partial(collection.get, document_id=document_id))
    _hold(call, len(found.text))
    return Long(len(found.text), partial(_document_entry, found))


@ROUTES.delete("/v1/collections/{collection}/documents/{id}", query=_OF, scope=Scope.MANAGE, uses_model=False)
async def remove_document(call: Call) -> DocumentsRemoved:
    """Remove one document from a collection."""
    return await _removed(call, [call.parameters["id"]], must_exist=True)


@ROUTES.post("/v1/collections/{collection}/documents/delete", query=_OF, scope=Scope.MANAGE, uses_model=False)
async def remove_documents(call: Call, body: RemoveDocumentsRequest) -> DocumentsRemoved:
    """Remove documents from a collection."""
    return await _removed(call, body.ids, must_exist=False)


@ROUTES.post("/v1/collections/{collection}/query", query=_OF)
async def query(call: Call, body: QueryRequest) -> Long[QueryAnswer]:
    """The documents of a collection that answer a query best."""
    engine, collection = call.engine, await _collection(call)
    found = await search_collection(
        engine,
        call.app[COLLECTIONS],
        collection,
        body.query,
        top_n=body.top_n,
        candidates=body.candidates,
        rerank=body.rerank,
        max_tokens=call.limits.max_prompt_tokens,
        on_thread=_on_thread(call),
        hold=partial(_hold, call),
    )
    size = sum(len(hit.document.text) for hit in found.hits)
    return Long(size, partial(_query_answer, collection.name, engine.info.model, found))


def _owner(call: Call) -> str:
    """Return the name of the owner whose collection is meant. Raises ForbiddenError and InvalidRequestError."""
    owner = listed_owner(call)
    if owner is None:
        raise InvalidRequestError("owner", ALL_OWNERS, "the name of one API key")
    return owner


async def _collection(call: Call) -> StoredCollection:
    find = call.app[COLLECTIONS].find
    return await _read(call, partial(find, owner=_owner(call), name=call.parameters["collection"]))


async def _read(call: Call, query: Callable[[Connection], T]) -> T:
    return await call.app[COLLECTIONS].database.read(query, call.principal.name)


async def _free(call: Call, change: Callable[[Transaction], T]) -> T:
    return await call.app[COLLECTIONS].database.write(change, call.principal.name, frees=True)


async def _removed(call: Call, ids: Sequence[str], *, must_exist: bool) -> DocumentsRemoved:
    collection, removed = await _collection(call), list[str]()
    while ids:
        found, ids = await _free(call, partial(collection.remove, ids=ids))
        removed += found
    if must_exist and not removed:
        raise collection.unknown(call.parameters["id"])
    return {"object": "collection.documents.deleted", "ids": removed}


def _hold(call: Call, num_bytes: int) -> None:
    """Count documents that a request is about to read in its memory; `num_bytes` is their size in the store."""
    call.hold_more("the documents", _TIMES_HELD * num_bytes)


def _on_thread(call: Call) -> OnThread:
    """Return a function that runs others on the worker threads, where clients take turns."""

    async def run(function: Callable[[], T]) -> T:
        return await work(call, SHORT_WORK + 1 + call.lease.num_bytes, function)

    return run


def _entry(store: DocumentStore, collection: StoredCollection) -> CollectionEntry:
    return described(
        CollectionEntry,
        collection,
        object="collection",
        model=collection.model_name,
        created=int(collection.created),
        documents=collection.num_documents,
        bytes=collection.num_bytes,
        persistent=store.persistent,
    )


def _document_entry(document: Document) -> DocumentEntry:
    return described(DocumentEntry, document, metadata=dict(document.metadata), tokens=document.num_tokens)


def _hit(hit: Hit) -> QueryHit:
    document = hit.document
    return described(QueryHit, hit, id=document.id, text=document.text, metadata=dict(document.metadata))


def _query_answer(name: str, model: str, found: Search) -> QueryAnswer:
    return {
        "object": "collection.query",
        "collection": name,
        "model": model,
        "method": found.method,
        "results": list(map(_hit, found.hits)),
        "search_ms": 1000 * found.search_seconds,
        "rerank_ms": 1000 * found.rerank_seconds,
        "tokens_run": found.tokens_run,
        "usage": usage_of(found.costs),
    }
