"""Cohere's routes for vectors of texts, of both versions of its API. Its reranking is in `rerank`."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NotRequired, TypeAlias

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.types import F32, EmbeddingTask
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.states import ModelNameBody
from rnn_engine_server.apis.openai.embeddings import EmbeddingsRequest, FoundVectors, find_vectors
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.schema import Only
from rnn_engine_server.core.settings import Limits

EmbeddingType: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
InputType: TypeAlias = Literal["search_document", "search_query", "classification", "clustering"]

_TASKS: Mapping[InputType | None, EmbeddingTask] = {"classification": "classification", "clustering": "similarity"}


class CohereEmbedRequest(ModelNameBody):
    """A request for vectors of texts, in Cohere's words: one of length 1 for each text."""

    ignored: ClassVar = frozenset({"truncate", "max_tokens", "priority"})  # texts are read as a whole
    neutral: ClassVar = {"images": Only((), because="the model reads text only")}

    texts: list[str] | None = Field(default=None, min_length=1, description="Texts; or else `inputs`.")
    inputs: list[dict[str, Any]] | None = Field(
        default=None, min_length=1, description='Objects with `content`, a list of parts `{"type": "text", ...}`.'
    )
    input_type: InputType | None = Field(
        default=None, description="What the vectors are for, of a model made for embedding; null is retrieval."
    )
    embedding_types: list[EmbeddingType] | None = Field(
        default=None,
        min_length=1,
        description="Forms of the vectors: numbers; numbers of 8 bits, of which 127 stands for 1; signs of eight "
        "numbers a byte; or the bytes of f32 as base64. Null is numbers.",
    )
    output_dimension: int | None = Field(default=None, description="Project the vectors to this many numbers.")

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if (self.texts is None) == (self.inputs is None):
            raise InvalidRequestError("texts", self.texts, "a list of texts, either here or in `inputs`")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        self.embeddings.check(limits)

    @cached_property
    def embeddings(self) -> EmbeddingsRequest:
        """The same request in OpenAI's words."""
        fields = {"input": self.texts or self.inputs, "dimensions": self.output_dimension, "normalize": True}
        return EmbeddingsRequest.model_validate({**fields, "task": _TASKS.get(self.input_type, "retrieval")})


class CohereUnits(TypedDict):
    input_tokens: int


class CohereEmbedVersion(TypedDict):
    version: Literal["1", "2"]


class CohereEmbedMeta(TypedDict):
    api_version: CohereEmbedVersion
    billed_units: CohereUnits


class CohereEmbeddings(TypedDict):
    """The vectors of texts, by their form; of version 1 without `embedding_types`, a list of lists of numbers."""

    id: str
    embeddings: list[list[float]] | dict[str, list[list[float]] | list[list[int]] | list[str]]
    texts: NotRequired[list[str]]
    meta: CohereEmbedMeta
    response_type: Literal["embeddings_floats", "embeddings_by_type"]


def _bytes(vector: F32) -> list[int]:
    numbers: list[int] = np.clip(np.rint(127.0 * vector), -128, 127).astype(int).tolist()
    return numbers


def _signs(vector: F32) -> list[int]:
    numbers: list[int] = np.packbits(vector > 0.0).tolist()
    return numbers


_FORMS: Mapping[EmbeddingType, Callable[[F32], object]] = {
    "float": lambda vector: vector.tolist(),
    "int8": _bytes,
    "uint8": lambda vector: [number + 128 for number in _bytes(vector)],
    "binary": lambda vector: [number - 128 for number in _signs(vector)],
    "ubinary": _signs,
    "base64": lambda vector: base64.b64encode(vector.astype("<f4").tobytes()).decode(),
}


ROUTES = RouteTable()


@ROUTES.post("/v2/embed", "/v1/embed", answer=CohereEmbeddings)
async def embed(call: Call, body: CohereEmbedRequest) -> Long[Mapping[str, object]]:
    """Vectors of texts, in Cohere's form."""
    has_tasks = not call.engine.info.shape.has_head  # it was made for embedding
    wanted = body.embeddings if has_tasks else body.embeddings.model_copy(update={"task": None})
    found = await find_vectors(call, wanted)
    version: Literal["1", "2"] = "2" if call.path.endswith("/v2/embed") else "1"
    size = found.num_numbers + sum(map(len, body.texts or ()))
    return Long(size, partial(_answer, body, found, version))


def _answer(body: CohereEmbedRequest, found: FoundVectors, version: Literal["1", "2"]) -> Mapping[str, object]:
    vectors = [one.vector for one in found.embeddings]
    by_type = body.embedding_types is not None or version == "2"
    kinds: Sequence[EmbeddingType] = body.embedding_types or ["float"]
    made = {kind: [_FORMS[kind](vector) for vector in vectors] for kind in kinds}
    return {
        "id": str(uuid.uuid4()),
        "embeddings": made if by_type else made["float"],
        **({} if body.texts is None else {"texts": body.texts}),
        "meta": {
            "api_version": {"version": version},
            "billed_units": {"input_tokens": usage_of(found.costs)["prompt_tokens"]},
        },
        "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
    }
