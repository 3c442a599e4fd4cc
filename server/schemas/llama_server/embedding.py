"""The bodies of llama-server's own embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.base import only
from server.schemas.embeddings import EmbeddingsRequest


class LlamaEmbeddingRequest(EmbeddingsRequest):
    """Texts whose vectors are wanted, in llama-server's words. The other fields are those of /v1/embeddings."""

    aliases: ClassVar = {**EmbeddingsRequest.aliases, "content": "input"}

    encoding_format: Literal["float"] = Field(default="float", description="Only numbers.")
    embd_normalize: Annotated[int | None, only(None, -1, 2, because="vectors are scaled to length 1 or not at all")] = (
        Field(default=None, description="2: as `normalize`; -1: without it. Null: 2, or -1 with `per_token`.")
    )
    per_token: bool = Field(
        default=False,
        description="A vector for the state after each token, and not only after the last, as llama-server gives with "
        "`--pooling none`. The tokens up to each of them count as one input of their own.",
    )

    @property
    def normalizes(self) -> bool:
        if self.embd_normalize is None:
            return self.normalize and not self.per_token
        return self.embd_normalize == 2


class LlamaEmbedding(TypedDict):
    """The vectors of one input: one, or with `per_token` one a token. The answer is a list of these."""

    index: int
    embedding: list[list[float]]
