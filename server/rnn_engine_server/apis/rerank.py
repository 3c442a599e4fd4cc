"""Routes that rank documents by a query, in the form of Cohere, Jina, llama-server and text-embeddings-inference."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.relevance import Method, Relevance, method
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import INPUTS, PromptText
from rnn_engine_server.apis.common.relevance import RelevanceBody, find_relevance
from rnn_engine_server.core.call import CALL_WORK, Call
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.schema import RefusedError, Usage


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


class RerankRequest(RelevanceBody):
    """Texts to rank by how well they answer a query. A score is from 0 to 1. A reranker, if the server has one beside
    its embedding model, reads the model's state after a text and the query. Any other model is asked after each text
    if it answers the query, and the score is P(Yes) / (P(Yes) + P(No)); it was not trained to rerank."""

    ignored: ClassVar = frozenset(
        {"max_chunks_per_doc", "metadata", "priority", "request_id", "truncate", "truncation_direction", "user"}
    )
    neutral: ClassVar = {"rank_fields": (["text"],), "truncate_prompt_tokens": (-1,), "use_activation": (True,)}

    query: PromptText = Field(min_length=1, description="The query to rank the documents by.")
    documents: Annotated[list[str] | None, BeforeValidator(_parse_documents), INPUTS] = Field(
        default=None, description='The texts, or objects such as `{"text": "..."}`.'
    )
    texts: Annotated[list[str] | None, BeforeValidator(_parse_documents), INPUTS] = Field(
        default=None, description="As `documents`; the answer is then a list, in the form of text-embeddings-inference."
    )
    top_n: int | None = Field(default=None, ge=1, description="How many of the best documents are returned. Null: all.")
    return_documents: bool = Field(default=False, description="Return the texts, too.")
    return_text: bool = Field(default=False, description="Return the texts, too.")
    raw_scores: bool = Field(
        default=False,
        description="Return log-odds, such as ln P(Yes) - ln P(No), as scores. The usual score is their sigmoid.",
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if (self.documents is None) == (self.texts is None):
            allowed = "a list of texts, either here or in `texts`"
            raise InvalidRequestError("documents", self.documents, allowed)

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


class CohereVersion(TypedDict):
    version: Literal["1", "2"]


class CohereTokens(TypedDict):
    input_tokens: int
    output_tokens: Literal[0]


class CohereMeta(TypedDict):
    """What Cohere reports of a request."""

    api_version: CohereVersion
    tokens: CohereTokens


class Reranked(TypedDict):
    """The ranked texts, the best first. `usage` counts tokens as OpenAI does, `meta` as Cohere does. `method` says how
    the scores were found: by a `reranker`, or by the probabilities of Yes and No."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: Usage
    meta: CohereMeta
    method: Method


ROUTES = RouteTable()


@ROUTES.post("/v1/rerank", "/v2/rerank", "/rerank", "/reranking", "/v1/reranking")
async def rerank(call: Call, body: RerankRequest) -> Long[Reranked | list[TeiRank]]:
    """Order texts by how well they answer a query."""
    engine = call.engine
    found = await find_relevance(call, engine, body, "documents", [(body.query, text) for text in body.contexts])
    version: Literal["1", "2"] = "2" if call.path.endswith("/v2/rerank") else "1"
    size = sum(map(len, body.contexts)) + CALL_WORK * len(body.contexts)
    return Long(size, partial(_answer, engine, body, found, version))


def _answer(
    engine: EngineLike, body: RerankRequest, found: Sequence[Relevance], version: Literal["1", "2"]
) -> Reranked | list[TeiRank]:
    ranked = sorted(range(len(found)), key=lambda index: -found[index].log_odds)[: body.top_n]
    results = [_entry(body, index, found[index]) for index in ranked]
    if body.texts is not None:
        return [_tei_entry(result) for result in results]
    usage = usage_of([each.cost for each in found])
    answer: Reranked = {
        "id": str(uuid.uuid4()),
        "object": "list",
        "model": engine.info.model,
        "results": results,
        "usage": usage,
        "meta": {
            "api_version": {"version": version},
            "tokens": {"input_tokens": usage["prompt_tokens"], "output_tokens": 0},
        },
        "method": method(engine),
    }
    return answer


def _entry(body: RerankRequest, index: int, relevance: Relevance) -> RankedDocument:
    score = relevance.log_odds if body.raw_scores else relevance.score
    entry: RankedDocument = {"index": index, "relevance_score": score}
    if body.return_documents or body.return_text:
        entry["document"] = {"text": body.contexts[index]}
    return entry


def _tei_entry(result: RankedDocument) -> TeiRank:
    entry: TeiRank = {"index": result["index"], "score": result["relevance_score"]}
    if "document" in result:
        entry["text"] = result["document"]["text"]
    return entry
