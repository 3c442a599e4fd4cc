"""The routes of text-embeddings-inference (TEI): vectors of texts, and how similar texts are."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine_server.apis.common.states import ModelNameBody
from rnn_engine_server.apis.openai.embeddings import EmbeddingsRequest, find_vectors
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure, RefusalError
from rnn_engine_server.core.handlers import Answer, Long, RouteTable
from rnn_engine_server.core.schema import Only, RequestBody
from rnn_engine_server.core.settings import Limits

_WITHOUT_EFFECT = frozenset({"truncate", "truncation_direction"})  # texts are read as a whole
_NO_PROMPTS = {"prompt_name": Only((), because="the model has no prompts by name; put the text before the inputs")}


class TeiEmbedRequest(EmbeddingsRequest):
    """A request for vectors of texts, in text-embeddings-inference's words. The other fields are those of
    /v1/embeddings."""

    ignored: ClassVar = _WITHOUT_EFFECT
    neutral: ClassVar = _NO_PROMPTS
    aliases: ClassVar = {"inputs": "input"}

    encoding_format: Literal["float"] = Field(default="float", description="Only numbers.")


class TeiEmbedAllRequest(TeiEmbedRequest):
    """A request for a vector after each token of texts. The tokens up to each of them count as an input of their
    own."""

    normalize: bool = Field(default=False, description="Scale every vector to length 1.")


class SimilarityInputs(RequestBody):
    """A text, and the texts that it is compared with."""

    source_sentence: str = Field(min_length=1, description="A text.")
    sentences: list[str] = Field(min_length=1, description="Texts to compare with it.")


class SimilarityParameters(RequestBody):
    """The settings of a comparison. None has an effect."""

    ignored: ClassVar = _WITHOUT_EFFECT
    neutral: ClassVar = _NO_PROMPTS


class TeiSimilarityRequest(ModelNameBody):
    """A request to compare a text with others: by the cosine of the angle between their vectors, which are those of
    /v1/embeddings."""

    inputs: SimilarityInputs = Field(description="The texts.")
    parameters: SimilarityParameters = Field(default=SimilarityParameters(), description="None has an effect.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        self.embeddings.check(limits)

    @cached_property
    def embeddings(self) -> EmbeddingsRequest:
        """The request for the vectors of all texts, the first of which is compared with the others."""
        texts = [self.inputs.source_sentence, *self.inputs.sentences]
        return EmbeddingsRequest.model_validate({"input": texts, "normalize": True})


TeiErrorType: TypeAlias = Literal["Unhealthy", "Backend", "Overloaded", "Validation"]


class TeiError(TypedDict):
    error: str
    error_type: TeiErrorType


_ERRORS: dict[int, tuple[int, TeiErrorType]] = {
    400: (422, "Validation"),
    429: (429, "Overloaded"),
    500: (424, "Backend"),
    501: (501, "Backend"),
    503: (503, "Unhealthy"),
    504: (424, "Backend"),
}


def tei_error(failure: Failure) -> tuple[int, TeiError]:
    """Return the HTTP status and the body of an error in text-embeddings-inference's form."""
    status, kind = _ERRORS.get(failure.status, (failure.status, "Validation"))
    return status, {"error": failure.message, "error_type": kind}


ROUTES = RouteTable(error_form=tei_error)


@ROUTES.post("/embed")
async def embed(call: Call, body: TeiEmbedRequest) -> Long[list[list[float]]]:
    """Vectors of texts, in text-embeddings-inference's form."""
    found = await find_vectors(call, body)
    return Long(found.num_numbers, lambda: [one.vector.tolist() for one in found.embeddings])


@ROUTES.post("/embed_all")
async def embed_all(call: Call, body: TeiEmbedAllRequest) -> Long[list[list[list[float]]]]:
    """A vector after each token of texts, in text-embeddings-inference's form."""
    found = await find_vectors(call, body, each=True)
    return Long(found.num_numbers, found.by_input)


@ROUTES.post("/similarity")
async def similarity(call: Call, body: TeiSimilarityRequest) -> Long[list[float]]:
    """How similar a text is to others: the cosine between their vectors."""
    found = await find_vectors(call, body.embeddings)

    def make() -> list[float]:
        source, *others = (one.vector for one in found.embeddings)
        cosines: list[float] = np.clip(np.stack(others) @ source, -1.0, 1.0).tolist()
        return cosines

    return Long(found.num_numbers, make)


@ROUTES.post("/predict", answer=TeiError, uses_model=False)
@ROUTES.post("/embed_sparse", answer=TeiError, uses_model=False)
async def refuse(_call: Call) -> Answer:
    """Refused with 501 and the reason: the model has no classes and no sparse vectors."""
    raise RefusalError(501, "the model is a language model: it has no classes and no sparse vectors")
