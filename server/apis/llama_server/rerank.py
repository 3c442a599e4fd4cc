"""Routes for embeddings and reranking in the form of llama-server, Jina and text-embeddings-inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from aiohttp import web
from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.embedding import Embedding
from rnn_engine.operations.scoring import Continuation, score_after
from server.apis.common.answering import usage_of
from server.apis.common.generation import check_prompts
from server.apis.common.states import ModelBody, resolve_initial_state
from server.apis.openai.embeddings import EmbeddingsRequest, find_vectors
from server.auth.engine import engine_of
from server.core.bodies import long_json_response, read_body, work
from server.core.routing import Route
from server.core.schema import RefusedError, Usage, only
from server.core.settings import SETTINGS, Limits


class LlamaEmbeddingRequest(EmbeddingsRequest):
    """A request for vectors of texts, with llama-server's field names. The other fields are those of /v1/embeddings."""

    aliases: ClassVar = {**EmbeddingsRequest.aliases, "content": "input"}

    encoding_format: Literal["float"] = Field(default="float", description="Only numbers.")
    embd_normalize: Annotated[int | None, only(None, -1, 2, because="vectors are scaled to length 1 or not at all")] = (
        Field(default=None, description="2: as `normalize`; -1: without it. Null: 2, or -1 with `per_token`.")
    )
    per_token: bool = Field(
        default=False,
        description="Return a vector for the state after each token, not only after the last, as llama-server does "
        "with `--pooling none`. The tokens up to each of them count as an input of their own.",
    )

    @property
    def normalizes(self) -> bool:
        if self.embd_normalize is None:
            return self.normalize and not self.per_token
        return self.embd_normalize == 2


class LlamaEmbedding(TypedDict):
    """The vectors of one input: a single one, or one for each token if the request sets `per_token`. The answer is a
    list of these.
    """

    index: int
    embedding: list[list[float]]


def _parse_documents(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise RefusedError(value, 'a list of strings, or of objects such as {"text": "..."}, at least one')
    return [_parse_document(document) for document in value]


def _parse_document(document: object) -> str:
    match document:
        case str():
            return document
        case {"text": str(text)}:
            return text
    raise RefusedError(document, 'strings, or objects such as {"text": "..."}')


class RerankRequest(ModelBody):
    """Texts to rank by how well they answer a query. A text's score is the geometric mean of the probabilities that the
    model gives to the query's tokens after the text and a blank line. So a text that makes the query likely comes
    first. The model was not trained to rerank."""

    ignored: ClassVar = frozenset({"metadata", "user", "raw_scores", "truncate", "truncation_direction"})

    query: str = Field(min_length=1, description="The query to rank the documents by.")
    documents: Annotated[list[str] | None, BeforeValidator(_parse_documents)] = Field(
        default=None, description='The texts, or objects such as `{"text": "..."}`.'
    )
    texts: Annotated[list[str] | None, BeforeValidator(_parse_documents)] = Field(
        default=None, description="As `documents`; the answer is then a list, in the form of text-embeddings-inference."
    )
    top_n: int | None = Field(default=None, ge=1, description="How many of the best documents are returned. Null: all.")
    return_documents: bool = Field(default=False, description="Return the texts, too.")
    return_text: bool = Field(default=False, description="Return the texts, too.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if (self.documents is None) == (self.texts is None):
            allowed = "a list of texts, either here or in `texts`"
            raise InvalidRequestError("documents", self.documents, allowed)

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_inputs", "documents", len(self.contexts))
        check_prompts(limits, "documents", self.contexts)
        check_prompts(limits, "query", [self.query])

    @property
    def contexts(self) -> list[str]:
        return self.documents or self.texts or []


class RankedText(TypedDict):
    text: str


class RankedDocument(TypedDict):
    """A ranked text. `index` is its place in the request, from 0."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class TeiRank(TypedDict):
    """A ranked text in text-embeddings-inference's form. The answer to a request with `texts` is a list of these, the
    best first.
    """

    index: int
    score: float
    text: NotRequired[str]


class Reranked(TypedDict):
    """The ranked texts, the best first."""

    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: Usage


# Embeddings as llama-server's own route gives them: a list of lists of vectors.


async def embedding(request: web.Request) -> web.Response:
    body = await read_body(request, LlamaEmbeddingRequest)
    found = await find_vectors(request, body.model_copy(update={"normalize": body.normalizes}), each=body.per_token)
    numbers = sum(one.vector.size for one in found.embeddings)
    return await long_json_response(request, numbers, lambda: _entries(found.embeddings, found.sizes))


def _entries(embeddings: Sequence[Embedding], sizes: Sequence[int]) -> list[LlamaEmbedding]:
    """Return one entry for each input, with `sizes[i]` of the vectors in `embeddings`, in order, for input i."""
    vectors = iter(embeddings)
    return [
        {"index": index, "embedding": [next(vectors).vector.tolist() for _ in range(size)]}
        for index, size in enumerate(sizes)
    ]


_GAP = "\n\n"  # between a text and the query


async def rerank(request: web.Request) -> web.Response:
    body = await read_body(request, RerankRequest)
    engine = engine_of(request, body.cache_salt)
    size = sum(map(len, body.contexts)) + len(body.query)
    contexts, query = await work(request, size, partial(_tokens, engine, request.app[SETTINGS].limits, body))
    found = await score_after(engine, contexts, query, initial_state=await resolve_initial_state(engine, body.state))
    make = partial(_answer, engine, body, found, len(query))
    return await long_json_response(request, size + sum(map(len, contexts)) + len(query) * len(contexts), make)


def _answer(
    engine: EngineLike, body: RerankRequest, found: Sequence[Continuation], query_tokens: int
) -> Reranked | list[TeiRank]:
    totals = [run.total for run in found]
    ranked = sorted(range(len(found)), key=lambda index: -totals[index])[: body.top_n]
    results = [_entry(body, index, math.exp(totals[index] / query_tokens)) for index in ranked]
    if body.texts is not None:
        return [_tei_entry(result) for result in results]
    answer: Reranked = {
        "object": "list",
        "model": engine.info.model,
        "results": results,
        "usage": usage_of([run.cost for run in found]),
    }
    return answer


def _tokens(engine: EngineLike, limits: Limits, body: RerankRequest) -> tuple[list[list[int]], list[int]]:
    """Return the tokens of each text and of the query. Raises InvalidRequestError if they are too many."""
    query = engine.tokenize(body.query)
    contexts = [engine.tokenize(text + _GAP) for text in body.contexts]
    num_tokens = sum(map(len, contexts)) + len(query) * len(contexts)
    limits.check("max_prompt_tokens", "documents", num_tokens)
    return contexts, query


def _entry(body: RerankRequest, index: int, score: float) -> RankedDocument:
    entry: RankedDocument = {"index": index, "relevance_score": score}
    if body.return_documents or body.return_text:
        entry["document"] = {"text": body.contexts[index]}
    return entry


def _tei_entry(result: RankedDocument) -> TeiRank:
    entry: TeiRank = {"index": result["index"], "score": result["relevance_score"]}
    if "document" in result:
        entry["text"] = result["document"]["text"]
    return entry


ROUTES = (
    Route(
        "POST",
        "/embedding",
        embedding,
        "The vectors of texts or tokens, as llama-server's own route gives them.",
        list[LlamaEmbedding],
        request=LlamaEmbeddingRequest,
        also=("/embeddings",),
    ),
    Route(
        "POST",
        "/v1/rerank",
        rerank,
        "Order texts by how likely each makes the query.",
        Reranked | list[TeiRank],
        request=RerankRequest,
        also=("/rerank", "/reranking", "/v1/reranking"),
    ),
)
