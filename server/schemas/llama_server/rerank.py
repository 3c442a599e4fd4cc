"""The bodies of /rerank, in the words of llama-server and Jina, and of text-embeddings-inference."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from server.limits import Limits
from server.schemas.base import RefusedError
from server.schemas.prompt import check_prompts
from server.schemas.state_ref import ModelBody
from server.schemas.usage import Usage


def _parse_documents(value: object) -> object:
    if not isinstance(value, list) or not value:
        raise RefusedError(value, 'a list of strings, or of objects as {"text": "..."}, at least one')
    return [_parse_document(document) for document in value]


def _parse_document(document: object) -> str:
    match document:
        case str():
            return document
        case {"text": str(text)}:
            return text
    raise RefusedError(document, 'strings, or objects as {"text": "..."}')


class RerankRequest(ModelBody):
    """Texts to be put in order by how well they answer a query. Their score is the geometric mean of the probabilities
    that the model gives to the query's tokens after the text and a blank line: a text that makes the query likely comes
    first. The model was not trained to rerank."""

    ignored: ClassVar = frozenset({"metadata", "user", "raw_scores", "truncate", "truncation_direction"})

    query: str = Field(min_length=1, description="What is asked for.")
    documents: Annotated[list[str] | None, BeforeValidator(_parse_documents)] = Field(
        default=None, description='The texts, or objects as `{"text": "..."}`.'
    )
    texts: Annotated[list[str] | None, BeforeValidator(_parse_documents)] = Field(
        default=None, description="As `documents`; the answer is then a list, as text-embeddings-inference has it."
    )
    top_n: int | None = Field(default=None, ge=1, description="How many of the best are told. Null: all.")
    return_documents: bool = Field(default=False, description="Tell the texts, too.")
    return_text: bool = Field(default=False, description="Tell the texts, too.")

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
    """`index` is the text's place in the request, from 0."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class TeiRank(TypedDict):
    """One of a list that answers `texts`, the best first."""

    index: int
    score: float
    text: NotRequired[str]


class Reranked(TypedDict):
    """The best first."""

    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: Usage
