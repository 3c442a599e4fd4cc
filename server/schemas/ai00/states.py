"""The bodies of ai00's own routes for states, whole or a row of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.operations.state_vector import Layers
from rnn_engine.requests import BEGINNING
from server.limits import Limits
from server.schemas.embeddings import LAYER_SCHEMA, EmbeddingsRequest, Encoding, parse_layer
from server.schemas.prompt import JOINED_SCHEMA, AnyPrompt, check_prompts, parse_joined
from server.schemas.state_ref import ModelBody
from server.schemas.usage import Usage


def _parse_inputs(value: object) -> tuple[AnyPrompt, ...]:
    return tuple(BEGINNING if prompt == "" else prompt for prompt in parse_joined(value))


_Inputs: TypeAlias = Annotated[tuple[AnyPrompt, ...], PlainValidator(_parse_inputs), WithJsonSchema(JOINED_SCHEMA)]
_INPUT = (
    "A text or token ids; a list of texts is one text, and a list of lists of token ids has an entry for each. "
    "Nothing is token 0."
)


class StatesRequest(ModelBody):
    """Texts whose states are wanted whole."""

    ignored: ClassVar = frozenset({"metadata", "user"})

    input: _Inputs = Field(default=(BEGINNING,), description=_INPUT)
    encoding_format: Encoding = Field(
        default="float", description="Numbers, or their bytes (f32, little-endian) as base64."
    )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("max_inputs", "input", len(self.input))
        check_prompts(limits, "input", self.input)


def _parse_layer(value: object) -> Layers | None:
    return None if value is None else parse_layer(value)


class Ai00EmbeddingsRequest(EmbeddingsRequest):
    """Texts of whose states a row is wanted. The fields of embeddings mean the same here; some have ai00's
    defaults."""

    aliases: ClassVar = {"embed_layer": "layer"}
    keeps_null: ClassVar = frozenset({"layer"})

    input: _Inputs = Field(default=(BEGINNING,), description=_INPUT)
    layer: Annotated[
        Layers | None,
        PlainValidator(_parse_layer),
        WithJsonSchema({"anyOf": [*LAYER_SCHEMA["anyOf"], {"type": "null"}]}),
    ] = Field(  # type: ignore[assignment]
        default=0,
        description="A layer, counted from the end where negative; several, joined; `all`, joined; or their `mean`. "
        "Null is the whole state, as `/api/oai/states` has it.",
    )
    part: str | None = Field(default="att_shift", description="A field of the state, as for `/v1/embeddings`.")
    normalize: bool = Field(default=False, description="Scale every vector to length 1.")


class WholeState(TypedDict):
    """`shape` is the width, the head size + 2, the number of layers and 1: the fastest axis first."""

    object: Literal["states"]
    index: int
    shape: list[int]
    data: list[float] | str


class StateList(TypedDict):
    """One entry an input, in their order."""

    object: Literal["list"]
    model: str
    data: list[WholeState]
    usage: Usage
