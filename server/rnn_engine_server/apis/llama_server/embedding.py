"""llama-server's own route for embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine_server.apis.openai.embeddings import EmbeddingsRequest, find_vectors
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.schema import only


class LlamaEmbeddingRequest(EmbeddingsRequest):
    """A request for vectors of texts, with llama-server's field names. The other fields are those of /v1/embeddings."""

    aliases: ClassVar = {"content": "input"}

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


ROUTES = RouteTable()


@ROUTES.post("/embedding", "/embeddings")
async def embedding(call: Call, body: LlamaEmbeddingRequest) -> Long[list[LlamaEmbedding]]:
    """The vectors of texts or tokens, as llama-server's own route gives them."""
    found = await find_vectors(call, body.model_copy(update={"normalize": body.normalizes}), each=body.per_token)

    def make() -> list[LlamaEmbedding]:
        return [{"index": index, "embedding": vectors} for index, vectors in enumerate(found.by_input())]

    return Long(found.num_numbers, make)
