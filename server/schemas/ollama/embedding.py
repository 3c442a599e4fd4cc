"""The bodies of Ollama's /api/embed and /api/embeddings."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.embeddings import EmbeddingsRequest
from server.schemas.ollama.generation import ModelName


class EmbedRequest(EmbeddingsRequest):
    """Texts whose vectors are wanted. Nothing is cut, so `truncate` has no effect, nor have `options`."""

    ignored: ClassVar = EmbeddingsRequest.ignored | {"keep_alive", "options", "truncate"}

    model: ModelName | None = Field(default=None, description="The model's name; null is the default one.")
    encoding_format: Literal["float"] = Field(default="float", description="Only numbers.")


class OlderEmbedRequest(EmbedRequest):
    """One text whose vector is wanted."""

    aliases: ClassVar = {**EmbedRequest.aliases, "prompt": "input"}


class Embedded(TypedDict):
    """A vector for each text, in their order; nanoseconds, and the tokens of all texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OlderEmbedded(TypedDict):
    embedding: list[float]
