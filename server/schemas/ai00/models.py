"""The bodies of ai00's routes for models: what is loaded, what may be, and loading it."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.convert.ai00 import Ai00ModelInfo
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.weight_choice import WeightChoice
from server.schemas.base import RefusedError, RequestBody
from states.named.entry import parse_id

Ai00Quant: TypeAlias = Literal["None", "Int8", "NF4", "SF4"]
Adapter: TypeAlias = Literal["Auto", "Economical"] | int

_FORMATS = {"None": "f16", "Int8": "int8", "NF4": "nf4", "SF4": "sf4"}


def _parse_adapter(value: object) -> object:
    match value:
        case "Auto" | "Economical":
            return value
        case {"Auto": None | {}}:
            return "Auto"
        case {"Economical": None | {}}:
            return "Economical"
        case {"Manual": int(index)} if type(index) is int and index >= 0:
            return index
    raise RefusedError(value, 'Auto, Economical or {"Manual": index}')


class LoraRef(RequestBody):
    """A LoRA to merge into the weights."""

    path: str = Field(min_length=1, description="A file in the folder of models.")
    alpha: float | None = Field(default=None, description="Its strength; null is the one that the file says.")


class StateFileRef(RequestBody):
    """A file with a state."""

    path: str = Field(min_length=1, description="A file in the folder of models.")
    name: str | None = Field(
        default=None, min_length=1, description="What requests call the state; null: what its file does."
    )
    default: bool = Field(default=False, description="Whether requests start from it that name none.")
    id: str | None = Field(
        default=None, description="A UUID by which requests may name it, too; null or zeros: that of its file, or any."
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.id is not None and parse_id(self.id) is None:
            raise InvalidRequestError("id", self.id, "a UUID")

    @property
    def key(self) -> uuid.UUID | None:
        """The id, where there is one."""
        key = None if self.id is None else parse_id(self.id)
        return None if key == uuid.UUID(int=0) else key


class ReloadRequest(RequestBody):
    """A model to load, as ai00 has it; `name`, `add` and `weights` are ours."""

    ignored: ClassVar = frozenset({"bnf", "device", "embed_device", "precision", "token_chunk_size"})

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
    quant_type: Ai00Quant = Field(default="None", description="The weights of `quant`.")
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


class Ai00Bnf(TypedDict):
    enable_bytes_cache: Literal[True]
    start_nonterminal: Literal["start"]


class Ai00StateFile(TypedDict):
    """`id` is null where the state's is not that of an order."""

    path: str
    name: str | None
    id: str | None
    default: bool


class ManualAdapter(TypedDict):
    Manual: int


class Ai00Reload(TypedDict):
    """How a model was loaded, as `POST /admin/models/load` takes it. `name`, `weights`, which says more than `quant`,
    and `device`, the name of `adapter`, are ours. `tokenizer_path` is null where the options say it or the engine has
    found it."""

    model_path: str
    name: str
    lora: list[Ai00Lora]
    state: list[Ai00StateFile]
    weights: str
    quant: int
    quant_type: Ai00Quant
    precision: Literal["Fp32"]
    token_chunk_size: int
    max_batch: int
    tokenizer_path: str | None
    bnf: Ai00Bnf
    adapter: Literal["Auto"] | ManualAdapter
    device: str


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
