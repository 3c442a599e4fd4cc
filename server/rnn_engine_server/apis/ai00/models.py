"""ai00's routes that list models and devices, and load and unload models while the server runs."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.convert.writers import Ai00ModelInfo, model_info
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.gpu import economical_device, list_devices
from rnn_engine.hub import model_name
from rnn_engine.interface import EngineInfo
from rnn_engine.loading.settings import StateFile
from rnn_engine.model import LoraChoice
from rnn_engine_server.apis.openai.models import ModelEntry, model_entry
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Answer, RouteTable, repeated
from rnn_engine_server.core.routing import EVENTS, MODEL_QUERY, SETTINGS
from rnn_engine_server.core.schema import RefusedError, RequestBody
from rnn_engine_server.models.files import ModelFileEntry, describe_file
from rnn_engine_server.models.orders import LoadOrder, ModelFolder, folder_of
from rnn_engine_server.models.registry import MODELS, ServedModel
from rnn_engine_states.named.entry import parse_id

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
    """A LoRA to merge into the weights of the model to load: the path of its file, and its strength."""

    path: str = Field(min_length=1, description="The path of a file in the folder of models.")
    alpha: float | None = Field(default=None, description="Its strength; null is the strength that the file gives.")


class StateFileRef(RequestBody):
    """The file of a state to load together with a model, as a named state."""

    path: str = Field(min_length=1, description="The path of a file in the folder of models.")
    name: str | None = Field(
        default=None,
        min_length=1,
        description="The name by which requests name the state; null is the name in its file.",
    )
    default: bool = Field(default=False, description="Whether requests that name no state start from this one.")
    id: str | None = Field(
        default=None,
        description="A UUID by which requests may also name the state. Null or zeros: the UUID in its file, or else a "
        "new one.",
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.id is not None and parse_id(self.id) is None:
            raise InvalidRequestError("id", self.id, "a UUID")

    @property
    def key(self) -> uuid.UUID | None:
        """The state's id as a UUID, or None if the request gives no id or one of zeros."""
        key = None if self.id is None else parse_id(self.id)
        return None if key == uuid.UUID(int=0) else key


class ReloadRequest(RequestBody):
    """A request to load a model, with ai00's field names.

    The fields `name`, `add`, `weights` and `reranker_path` are this server's own.
    """

    always_strict: ClassVar = True

    ignored: ClassVar = frozenset({"bnf", "device", "embed_device", "precision", "token_chunk_size"})

    model_path: str = Field(min_length=1, description="The path of a file in the folder of models.")
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="The name by which requests name the model; null is the file's name without its suffix. A loaded "
        "model of this name is replaced: its running requests end first, and new ones wait.",
    )
    add: bool = Field(
        default=False,
        description="Keep all loaded models, and the default model. Without it, this model becomes the default, and "
        "the previous default is unloaded when its requests have ended.",
    )
    weights: str | None = Field(
        default=None,
        description="The weights, as in `serve --weights`. Null: those of `quant` if it is given, else those of the "
        "server's options.",
    )
    lora: list[LoraRef] = Field(default=[], description="LoRAs to merge, in this order.")
    state: list[StateFileRef] = Field(default=[], description="States that requests may start from.")
    quant: int = Field(
        default=0, ge=0, description="How many layers, from the first on, have the weights of `quant_type`."
    )
    quant_type: Ai00Quant = Field(default="None", description="The weights of the first `quant` layers.")
    max_batch: int | None = Field(
        default=None, ge=1, description="How many requests run at the same time; null: `--slots`."
    )
    tokenizer_path: str | None = Field(
        default=None, description="A tokenizer in the folder of models; null: the server's option."
    )
    reranker_path: str | None = Field(
        default=None,
        min_length=1,
        description="The path of a reranker in the folder of models, for a model made for embedding; null: none.",
    )
    adapter: Annotated[
        Adapter | None,
        BeforeValidator(_parse_adapter),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = Field(
        default=None,
        description='The device: `Auto`, `Economical` (an integrated one), or `{"Manual": index}`; null: `--device`.',
    )

    def model_post_init(self, context: Any) -> None:  # noqa: ANN401
        super().model_post_init(context)
        if self.weights is not None:
            WeightChoice.parse(self.weights)
        if sum(state.default for state in self.state) > 1:
            raise InvalidRequestError(
                "state", [state.path for state in self.state], "at most one state with default set to true"
            )

    @property
    def chosen_weights(self) -> str | None:
        """The weight formats that the request chooses, in the syntax of `serve --weights`.

        None to use the server's options.
        """
        if self.weights is not None or not {"quant", "quant_type"} & self.model_fields_set:
            return self.weights
        return f"{_FORMATS[self.quant_type]},layers={self.quant}" if self.quant else _FORMATS["None"]


class UnloadRequest(RequestBody):
    """A request to unload a model."""

    always_strict: ClassVar = True

    model: str | None = Field(default=None, description="The name of the model; null is the default model.")


class Ai00Lora(TypedDict):
    path: str
    alpha: float | None


class Ai00Bnf(TypedDict):
    enable_bytes_cache: Literal[True]
    start_nonterminal: Literal["start"]


class Ai00StateFile(TypedDict):
    """The file of a state that was loaded with the model, as a named state.

    `id` is null unless the request to load the model gave one.
    """

    path: str
    name: str | None
    id: str | None
    default: bool


class ManualAdapter(TypedDict):
    Manual: int


class Ai00Reload(TypedDict):
    """The settings with which a model was loaded, in the form of a request to `POST /admin/models/load`.

    The fields `name`, `weights` (which says more than `quant`), `reranker_path` and `device` (the name of `adapter`)
    are this server's own. `tokenizer_path` is null if the options name the tokenizer or the engine has found it.
    """

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
    reranker_path: str | None
    bnf: Ai00Bnf
    adapter: Literal["Auto"] | ManualAdapter
    device: str


class Ai00State(TypedDict):
    id: str
    name: str
    default: bool


class ModelsInfo(TypedDict):
    """The description of the loaded model and its named states, in ai00's form."""

    reload: Ai00Reload
    model: Ai00ModelInfo
    states: list[Ai00State]


_TYPES: dict[str, Ai00Quant] = {"int8": "Int8", "nf4": "NF4", "sf4": "SF4"}
_CHUNK = 128  # ai00's default, which is no setting here


def describe_load(order: LoadOrder, info: EngineInfo) -> Ai00Reload:
    """Return the settings of a loaded model in the form of a request body that would load it again."""
    weights = WeightChoice.parse(info.weights)
    kind = _TYPES.get(weights.formats["att"], "None")
    layers = info.shape.num_layers if weights.num_layers is None else weights.num_layers
    index = order.device
    return {
        "model_path": str(order.path),
        "name": info.model,
        "lora": [{"path": str(lora.path), "alpha": lora.alpha} for lora in info.loras],
        "state": [
            {
                "path": str(file.path),
                "name": file.name,
                "id": None if file.id is None else str(file.id),
                "default": file.name is not None and file.name == order.default_state,
            }
            for file in order.states
        ],
        "weights": info.weights,
        "quant": 0 if kind == "None" else layers,
        "quant_type": kind,
        "precision": "Fp32",
        "token_chunk_size": _CHUNK,
        "max_batch": info.num_slots,
        "tokenizer_path": order.tokenizer,
        "reranker_path": None if order.reranker is None else str(order.reranker),
        "bnf": {"enable_bytes_cache": True, "start_nonterminal": "start"},
        "adapter": {"Manual": int(index)} if index is not None and index.isdecimal() else "Auto",
        "device": info.device,
    }


_STATE_SECONDS = 0.5  # between two events of models/state


ROUTES = RouteTable()


@ROUTES.get("/api/models/info", "/api/oai/models/info")
async def info(call: Call) -> ModelsInfo:
    """The loaded model, its settings and its states, in ai00's form."""
    engine = call.engine
    listing = await engine.states.list()
    return {
        "reload": describe_load(call.app[MODELS].find(engine.info.model).order, engine.info),
        "model": model_info(engine.info.shape),
        "states": [
            {"id": str(each.id), "name": each.name, "default": each.name == listing.default} for each in listing.entries
        ],
    }


@ROUTES.get("/api/models/state", "/api/oai/models/state", answer=ModelsInfo, content_type=EVENTS)
async def state(call: Call) -> Answer:
    """The loaded model, its settings and its states, in ai00's form: a stream with two events a second."""
    return await repeated(call, _STATE_SECONDS, partial(info, call))


@ROUTES.get("/api/models/list", "/api/oai/models/list", scope=Scope.ADMIN, uses_model=False)
async def list_files(call: Call) -> list[ModelFileEntry]:
    """The files in the folder of models (`--model-folder`), or those of the served models if there is no folder.

    The first call reads the whole files.
    """
    if call.app[SETTINGS].model_folder is None:
        models = call.app[MODELS]
        return await asyncio.to_thread(lambda served: list(map(_describe_served, served)), list(models))
    folder = folder_of(call.app[SETTINGS])
    return await asyncio.to_thread(lambda: [describe_file(path, with_sha=True) for path in folder.models()])


@ROUTES.get("/api/adapters", "/api/oai/adapters", uses_model=False)
async def adapters(_call: Call) -> list[str]:
    """The devices, each as "name (backend)"."""
    return [f"{device.name} ({device.backend})" for device in await asyncio.to_thread(list_devices)]


def _describe_served(model: ServedModel) -> ModelFileEntry:
    path, info = model.order.path, model.info
    if path.is_file():
        return describe_file(path, with_sha=True)
    shape = None if info is None else model_info(info.shape)
    return {"path": str(path), "name": path.name, "size": 0, "sha": "", "info": shape}


# Load and unload models while the server runs, for admins.


@ROUTES.post("/admin/models/load", "/api/admin/models/load", scope=Scope.ADMIN, uses_model=False)
async def load(call: Call, body: ReloadRequest) -> ModelEntry:
    """Load a model from the folder of models (`--model-folder`), in place of the default model or in addition to it."""
    models = call.app[MODELS]
    order = await asyncio.to_thread(_order, body, folder_of(call.app[SETTINGS]))
    model = await (models.put(order) if body.add else models.replace_default(order))
    return model_entry(model, call.limits)


@ROUTES.post("/admin/models/unload", "/api/admin/models/unload", scope=Scope.ADMIN, uses_model=False)
async def unload(call: Call, body: UnloadRequest) -> ModelEntry:
    """Unload a model when its running requests have ended.

    Later requests for it get 503 until it is loaded again.
    """
    return await _unload(call, body.model)


@ROUTES.get(
    "/admin/models/unload",
    "/api/admin/models/unload",
    query=MODEL_QUERY,
    changes_by_get=True,
    scope=Scope.ADMIN,
    uses_model=False,
)
async def unload_by_get(call: Call) -> ModelEntry:
    """Unload a model when its running requests have ended.

    Later requests for it get 503 until it is loaded again. Browsers are refused, except on the server's own page and on
    listed origins (`--cors-origin`).
    """
    return await _unload(call, call.query.get("model"))


async def _unload(call: Call, name: str | None) -> ModelEntry:
    models = call.app[MODELS]
    model = models.default if name is None else models.find(name)
    await model.unload(withdraw=True)
    return model_entry(model, call.limits)


def _order(body: ReloadRequest, folder: ModelFolder) -> LoadOrder:
    """Return the order to load a request's model, with all its files found in `folder`.

    Raises ForbiddenError for a file outside of the allowed folders, and NotFoundError for one that does not exist.
    """
    path = folder.find(body.model_path)
    states = tuple(_state_file(state, folder.find(state.path)) for state in body.state)
    default = next((file.name for file, state in zip(states, body.state, strict=True) if state.default), None)
    return LoadOrder(
        name=body.name or model_name(path),
        path=path,
        loras=tuple(LoraChoice(folder.find(lora.path), lora.alpha) for lora in body.lora),
        states=states,
        default_state=default,
        weights=body.chosen_weights,
        slots=body.max_batch,
        device=_device(body.adapter),
        tokenizer=None if body.tokenizer_path is None else str(folder.find(body.tokenizer_path)),
        reranker=None if body.reranker_path is None else folder.find(body.reranker_path),
    )


def _state_file(state: StateFileRef, path: Path) -> StateFile:
    """Return the description of a state's file to load, with the name and the id that the request's `state` gives.

    A default state without a name is named after its file.
    """
    return StateFile(path, state.name or (path.stem if state.default else None), state.key)


def _device(adapter: object) -> str | None:
    match adapter:
        case int():
            return str(adapter)
        case "Economical":
            return economical_device()
        case "Auto":
            return "auto"
    return None
