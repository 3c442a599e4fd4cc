"""The bodies of ai00's /api/oai/embeds."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from server.limits import Limits
from server.schemas.base import RequestBody

MOST_TOKENS = 510


class EmbedsRequest(RequestBody):
    """A text to be cut into pieces, each of which gets a vector."""

    ignored: ClassVar = frozenset({"metadata", "model", "user"})

    input: str = Field(min_length=1, description="The text.")
    max_tokens: int = Field(
        default=MOST_TOKENS, ge=0, description=f"The most tokens of a piece, from 1 to {MOST_TOKENS}; more are that."
    )
    prefix: str = Field(default="query:", description="What is put before each piece, as the model was trained.")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_text_bytes", "input", len(self.input.encode()))
        limits.check("max_stop_bytes", "prefix", len(self.prefix.encode()))


class EmbeddedChunk(TypedDict):
    """A piece of the text, and a list with its one vector."""

    chunk: str
    embed: list[list[float]]


class EmbeddedText(TypedDict):
    object: Literal["embed"]
    index: int
    chunks: list[EmbeddedChunk]


class Embeds(TypedDict):
    """`data` has one entry; `model` is the embedding model."""

    object: Literal["embeds"]
    model: str
    data: list[EmbeddedText]
