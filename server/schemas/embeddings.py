"""The bodies of /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.operations.state_vector import EmbeddingSettings, Layers, Pooling
from server.limits import Limits
from server.schemas.base import INTEGERS, RefusedError, is_integers
from server.schemas.messages import TEXT_PART, parse_content
from server.schemas.prompt import PROMPTS_SCHEMA, AnyPrompt, Prompts, check_prompts, parse_prompts
from server.schemas.state_ref import ModelBody
from server.schemas.usage import Usage

Encoding: TypeAlias = Literal["float", "base64"]

_DEFAULT = EmbeddingSettings()


def parse_layer(value: object) -> Layers:
    if value == "all":
        return "all"
    if value == "mean":
        return "mean"
    if type(value) is int:
        return value
    if is_integers(value) and value:
        return tuple(value)
    raise RefusedError(value, 'a layer\'s number, a list of numbers, "all" or "mean"')


def _parse_inputs(value: object) -> tuple[AnyPrompt, ...]:
    """Return inputs as `parse_prompts` does, with the texts of objects that have parts, as chats have them."""
    if isinstance(value, list):
        return parse_prompts([_plain_input(item) for item in value])
    return parse_prompts(_plain_input(value))


def _plain_input(value: object) -> object:
    match value:
        case {"content": list(parts)}:
            return parse_content(parts)
    return value


_PARTS = {"type": "object", "properties": {"content": {"type": "array", "items": TEXT_PART}}}
Inputs: TypeAlias = Annotated[
    tuple[AnyPrompt, ...],
    PlainValidator(_parse_inputs),
    WithJsonSchema({"anyOf": [*PROMPTS_SCHEMA["anyOf"], _PARTS, {"type": "array", "items": _PARTS}]}),
]
LAYER_SCHEMA = {"anyOf": [{"type": "integer"}, INTEGERS, {"enum": ["all", "mean"]}]}


class EmbeddingsRequest(ModelBody):
    """Texts whose vectors are wanted."""

    ignored: ClassVar = frozenset({"metadata", "user"})

    input: Inputs = Field(
        description="Texts, token ids, or objects with `content`, a list of text parts; one entry each, none empty."
    )
    encoding_format: Encoding = Field(
        default="float", description="Numbers, or their bytes (f32, little-endian) as base64."
    )
    layer: Annotated[Layers, PlainValidator(parse_layer), WithJsonSchema(LAYER_SCHEMA)] = Field(
        default=_DEFAULT.layer,
        description="A layer, counted from the end where negative; several, joined; `all`, joined; or their `mean`.",
    )
    part: str | None = Field(
        default=_DEFAULT.part,
        description=(
            "A field of the state (from RWKV-5 on: `att_shift`, `wkv`, `ffn_shift`; of RWKV-4: `att_shift`, `aa`, `bb`,"
            " `pp`, `ffn_shift`), or `all`, which joins them, each scaled to length 1. Null is `wkv`, and `all` of an"
            " RWKV-4."
        ),
    )
    pooling: Pooling = Field(
        default=_DEFAULT.pooling, description="What becomes of `wkv`: a number a key or a value of a head, or all."
    )
    dimensions: int | None = Field(
        default=_DEFAULT.dimensions, description="Project the vector to this many numbers. Null keeps it as it is."
    )
    normalize: bool = Field(default=_DEFAULT.normalize, description="Scale every vector to length 1.")
    center_on: Prompts = Field(
        default=(), description="Texts or token ids whose mean vector is subtracted from every vector."
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_inputs", "input", len(self.input))
        check_prompts(limits, "input", self.input)
        limits.check("max_inputs", "center_on", len(self.center_on))
        check_prompts(limits, "center_on", self.center_on)

    @property
    def settings(self) -> EmbeddingSettings:
        return EmbeddingSettings(self.layer, self.part, self.pooling, self.dimensions, self.normalize)


class EmbeddingEntry(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    """One entry an input, in their order."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingEntry]
    usage: Usage
