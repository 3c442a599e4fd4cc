"""The bodies of ai00's routes for models: what is loaded, what may be, and loading it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.convert.ai00 import Ai00ModelInfo
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.weight_choice import WeightChoice
from server.schemas.base import RefusedError, RequestBody

Adapter: TypeAlias = Literal["Auto", "Economical"] | int

_FORMATS = {"None": "f16", "Int8": "int8", "NF4": "nf4", "SF4": "sf4"}


def _parse_adapter(value: object) -> object:
    match value:
        case "Auto" | "Economical":
            return value
        case {"Manual": int(index)} if type(index) is int and index >= 0:
            return index
    raise RefusedError(value, 'Auto, Economical or {"Manual": index}')


class LoraRef(RequestBody):
    """A LoRA to merge into the weights."""

    path: str = Field(min_length=1, description="A file in the folder of models.")
    alpha: float | None = Field(default=None, description="Its strength; null is the one that the file says.")


class StateFileRef(RequestBody):
    """A file with a state."""

    ignored: ClassVar = frozenset({"id"})  # a file that has one says it itself

    path: str = Field(min_length=1, description="A file in the folder of models.")
    name: str | None = Field(
        default=None, min_length=1, description="What requests call the state; null: what its file does."
    )
    default: bool = Field(default=False, description="Whether requests start from it that name none.")


class ReloadRequest(RequestBody):
    """A model to load, as ai00 has it; `name`, `add` and `weights` are ours."""

    ignored: ClassVar = frozenset({"bnf", "precision", "token_chunk_size"})  # found by the engine itself

    model_path: str = Field(min_length=1, description="A file in the folder of models.")
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="What requests call the model; null: the file's name without its ending. One that is loaded under "
        "this name is replaced: requests that run end first, and new ones wait.",
    )
    add: bool = Field(
        default=False,
        description="Keep all models that are loaded, and the default. Without it the model becomes the default, and "
        "the one that was is unloaded when its requests have ended.",
    )
    weights: str | None = Field(
        default=None, description="The weights as `serve --weights` has them; null: by `quant`, else by the options."
    )
    lora: list[LoraRef] = Field(default=[], description="LoRAs to merge, in this order.")
    state: list[StateFileRef] = Field(default=[], description="States that requests may start from.")
    quant: int = Field(default=0, ge=0, description="How many layers, from the first on, `quant_type` is for.")
    quant_type: Literal["None", "Int8", "NF4", "SF4"] = Field(default="None", description="The weights of `quant`.")
    max_batch: int | None = Field(default=None, ge=1, description="How many requests run at a time; null: --slots.")
    tokenizer_path: str | None = Field(
        default=None, description="A tokenizer in the folder of models; null: as the options say."
    )
    adapter: Annotated[
        Adapter | None,
        BeforeValidator(_parse_adapter),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = Field(
        default=None,
        description='The device: `Auto`, `Economical` (an integrated one), or `{"Manual": index}`; null: --device.',
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.weights is not None:
            WeightChoice.parse(self.weights)
        if sum(state.default for state in self.state) > 1:
            raise InvalidRequestError("state", [state.path for state in self.state], "one that is the default")

    @property
    def chosen_weights(self) -> str | None:
        """The weights as the command line has them; None is what the options say."""
        if self.weights is not None or not {"quant", "quant_type"} & self.model_fields_set:
            return self.weights
        return f"{_FORMATS[self.quant_type]},layers={self.quant}" if self.quant else _FORMATS["None"]


class UnloadRequest(RequestBody):
    """A model to unload."""

    model: str | None = Field(default=None, description="Its name; null is the default one.")


class Ai00Lora(TypedDict):
    path: str
    alpha: float | None


class Ai00Reload(TypedDict):
    """How a model was loaded. `weights` is our name of what is quantised."""

    model_path: str
    name: str
    lora: list[Ai00Lora]
    weights: str
    max_batch: int
    adapter: str


class Ai00State(TypedDict):
    id: str
    name: str
    default: bool


class ModelsInfo(TypedDict):
    """What is loaded."""

    reload: Ai00Reload
    model: Ai00ModelInfo
    states: list[Ai00State]


class ModelFileEntry(TypedDict):
    """A file in the folder of models. `sha` is SHA-256; `info` is null for what is no model."""

    path: str
    name: str
    size: int
    sha: str
    info: Ai00ModelInfo | None


ModelFiles: TypeAlias = list[ModelFileEntry]
Adapters: TypeAlias = list[str]
