"""Routes for named collections of documents: make, list and delete them, add documents, and search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from sqlite3 import Connection
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from aiohttp import web
from pydantic import FailFast, Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.database import Transaction
from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.collections import (
    DEFAULT_CANDIDATES,
    DEFAULT_TOP_N,
    MAX_CANDIDATES,
    OnThread,
    Search,
    add_documents,
    create_collection,
    prepare_documents,
    search_collection,
)
from rnn_engine.operations.relevance import Method
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import check_prompts
from rnn_engine_server.apis.common.owned import ALL_OWNERS, OWNER_QUERY, listed_owner
from rnn_engine_server.apis.common.states import ModelNameBody
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.auth.engine import engine_of
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import (
    hold_more,
    json_response,
    long_json_response,
    page_ends,
    query_count,
    read_body,
)
from rnn_engine_server.core.routing import SETTINGS, Route
from rnn_engine_server.core.schema import STRING, RefusedError, RequestBody, Usage
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.core.workers import CALL_WORK, SHORT_WORK, work
from rnn_engine_states.documents import Document, DocumentStore, StoredCollection

T = TypeVar("T")

COLLECTIONS = web.AppKey("collections", DocumentStore)
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


class CollectionEntries(TypedDict):
    """The collections of the API key, ordered by name. If `has_more`, `last_id` is `after` for the next page."""

    object: Literal["list"]
    data: list[CollectionEntry]
    first_id: str | None
    last_id: str | None
    has_more: bool


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
    """Documents in the order in which they were added, fewer than `limit` if they are large. If `has_more`, the id of
    the last is `after` for the next."""

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
    store, limit = request.app[COLLECTIONS], query_count(request, "limit", _MOST_LISTED, _MOST_LISTED)
    page = partial(store.page, owner=listed_owner(request), after=request.query.get("after"), limit=limit)
    found, has_more = await _read(request, page)
    hold_more(request, "the list", _ENTRY_BYTES * len(found))

    def make() -> CollectionEntries:
        ends = page_ends(found, has_more=has_more)
        return {"object": "list", "data": [_entry(store, each) for each in found], **ends}

    return await long_json_response(request, CALL_WORK * len(found), make)


async def create(request: web.Request) -> web.Response:
    body = await read_body(request, CreateCollectionRequest)
    store = request.app[COLLECTIONS]
    made = await create_collection(engine_of(request), store, request[PRINCIPAL].name, body.name)
    return json_response(_entry(store, made))


async def get(request: web.Request) -> web.Response:
    return json_response(_entry(request.app[COLLECTIONS], await _collection(request)))


async def delete(request: web.Request) -> web.Response:
    store, name = request.app[COLLECTIONS], request.match_info["collection"]
    await _free(request, partial(store.delete, owner=_owner(request), name=name))
    answer: CollectionDeleted = {"object": "collection.deleted", "name": name, "deleted": True}
    return json_response(answer)


async def add(request: web.Request) -> web.Response:
    body = await read_body(request, AddDocumentsRequest)
    engine, store, collection = engine_of(request), request.app[COLLECTIONS], await _collection(request)
    prepare = partial(prepare_documents, engine, store, collection, body.documents, replace_known=body.replace)
    new = await _on_thread(request)(prepare)
    request.app[SETTINGS].limits.check("max_prompt_tokens", "documents", new.num_tokens)
    costs = await add_documents(engine, store, collection, new)
    answer: DocumentsAdded = {
        "object": "collection.documents.added",
        "ids": [document.id for document in new.documents],
        "usage": usage_of(costs),
    }
    return json_response(answer)


async def list_documents(request: web.Request) -> web.Response:
    collection, limit = await _collection(request), query_count(request, "limit", 100, _MOST_DOCUMENTS)
    rows, has_more = await _read(request, partial(collection.page, after=request.query.get("after"), limit=limit))
    num_bytes = sum(row.num_bytes for row in rows)
    _hold(request, num_bytes)

    def make() -> DocumentEntries:
        read = partial(collection.read, rows=[row.row for row in rows])
        documents = request.app[COLLECTIONS].database.read_now(read).values()
        return {"object": "list", "data": list(map(_document_entry, documents)), "has_more": has_more}

    return await long_json_response(request, SHORT_WORK + 1 + num_bytes, make)


async def get_document(request: web.Request) -> web.Response:
    collection, document_id = await _collection(request), request.match_info["id"]
    found = await _read(request, partial(collection.get, document_id=document_id))
    _hold(request, len(found.text))
    return await long_json_response(request, len(found.text), partial(_document_entry, found))


async def remove_document(request: web.Request) -> web.Response:
    return await _removed(request, [request.match_info["id"]], must_exist=True)


async def remove_documents(request: web.Request) -> web.Response:
    body = await read_body(request, RemoveDocumentsRequest)
    return await _removed(request, body.ids, must_exist=False)


async def query(request: web.Request) -> web.Response:
    body = await read_body(request, QueryRequest)
    engine, collection = engine_of(request), await _collection(request)
    found = await search_collection(
        engine,
        request.app[COLLECTIONS],
        collection,
        body.query,
        top_n=body.top_n,
        candidates=body.candidates,
        rerank=body.rerank,
        max_tokens=request.app[SETTINGS].limits.max_prompt_tokens,
        on_thread=_on_thread(request),
        hold=partial(_hold, request),
    )
    size = sum(len(hit.document.text) for hit in found.hits)
    return await long_json_response(request, size, partial(_query_answer, collection.name, engine.info.model, found))


def _owner(request: web.Request) -> str:
    """Return the name of the owner whose collection is meant. Raises ForbiddenError and InvalidRequestError."""
    owner = listed_owner(request)
    if owner is None:
        raise InvalidRequestError("owner", ALL_OWNERS, "the name of one API key")
    return owner


async def _collection(request: web.Request) -> StoredCollection:
    find = request.app[COLLECTIONS].find
    return await _read(request, partial(find, owner=_owner(request), name=request.match_info["collection"]))


async def _read(request: web.Request, query: Callable[[Connection], T]) -> T:
    return await request.app[COLLECTIONS].database.read(query, request[PRINCIPAL].name)


async def _free(request: web.Request, change: Callable[[Transaction], T]) -> T:
    return await request.app[COLLECTIONS].database.write(change, request[PRINCIPAL].name, frees=True)


async def _removed(request: web.Request, ids: Sequence[str], *, must_exist: bool) -> web.Response:
    collection, removed = await _collection(request), list[str]()
    while ids:
        found, ids = await _free(request, partial(collection.remove, ids=ids))
        removed += found
    if must_exist and not removed:
        raise collection.unknown(request.match_info["id"])
    answer: DocumentsRemoved = {"object": "collection.documents.deleted", "ids": removed}
    return json_response(answer)


def _hold(request: web.Request, num_bytes: int) -> None:
    """Count documents of so many bytes, as they are stored, in the memory of a request that is about to read them."""
    hold_more(request, "the documents", _TIMES_HELD * num_bytes)


def _on_thread(request: web.Request) -> OnThread:
    """Return a function that runs others on the worker threads, where clients take turns."""

    async def run(function: Callable[[], T]) -> T:
        return await work(request, SHORT_WORK + 1, function)

    return run


def _entry(store: DocumentStore, collection: StoredCollection) -> CollectionEntry:
    return {
        "object": "collection",
        "id": collection.id,
        "name": collection.name,
        "owner": collection.owner,
        "model": collection.model_name,
        "created": int(collection.created),
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
_ADD = "Add documents to a collection. The model runs each once for its vector and once for a state that is kept."
_CREATE = "Make an empty collection of documents."
_QUERY = "The documents of a collection that answer a query best."
_REMOVE = "Remove documents from a collection."
_reading = partial(Route, "GET", uses_model=False)
_changing = partial(Route, scope=Scope.MANAGE)
_removing = partial(_changing, query=_OF, uses_model=False)

ROUTES = (
    _reading(_ALL, list_collections, "The collections of documents.", CollectionEntries, query=_LIST),
    _changing("POST", _ALL, create, _CREATE, CollectionEntry, request=CreateCollectionRequest),
    _reading(_ONE, get, "A collection of documents.", CollectionEntry, query=_OF),
    _removing("DELETE", _ONE, delete, "Delete a collection with all of its documents.", CollectionDeleted),
    _reading(_DOCUMENTS, list_documents, "The documents of a collection.", DocumentEntries, query=_PAGE),
    _changing("POST", _DOCUMENTS, add, _ADD, DocumentsAdded, request=AddDocumentsRequest, query=_OF),
    _removing(
        "POST", f"{_DOCUMENTS}/delete", remove_documents, _REMOVE, DocumentsRemoved, request=RemoveDocumentsRequest
    ),
    _reading(_DOCUMENT, get_document, "One document of a collection.", DocumentEntry, query=_OF),
    _removing("DELETE", _DOCUMENT, remove_document, "Remove one document from a collection.", DocumentsRemoved),
    Route("POST", f"{_ONE}/query", query, _QUERY, QueryAnswer, request=QueryRequest, query=_OF),
)
