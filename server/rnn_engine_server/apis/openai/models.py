"""OpenAI's list of models, with the facts of each."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, NotRequired, cast

from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, ModelNotFoundError, NotFoundError
from rnn_engine.interface import EngineInfo
from rnn_engine.telemetry import HealthStatus
from rnn_engine.types import EmbeddingTask
from rnn_engine_server.apis.common.owned import Deleted, ListOf, deleted
from rnn_engine_server.apis.openai.files import FILES
from rnn_engine_server.auth.engine import open_engines_of
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import RouteTable
from rnn_engine_server.core.routing import REST
from rnn_engine_server.core.schema import described
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.models.registry import MODELS, ModelStatus, ServedModel
from rnn_engine_server.store.files import lora_file_id
from rnn_engine_server.store.tunings import TUNED_PREFIX
from rnn_engine_states.named.entry import NamedState


class LoraEntry(TypedDict):
    """A LoRA that is merged into the model.

    `alpha` is its strength, null for the one that its file gives.
    """

    name: str
    alpha: float | None


class EmbeddingMeta(TypedDict):
    """What a model made for embedding has: vectors of this width for these tasks, and perhaps a reranker beside it."""

    width: int
    tasks: list[EmbeddingTask]
    reranker: str | None


class DevicePartEntry(TypedDict):
    """The layers on one of a model's devices, and the bytes that they take there; null on the processor."""

    device: str
    first_layer: int
    last_layer: int
    num_bytes: int | None


class ModelMeta(TypedDict):
    """Properties of a model: its sizes, which depend on its version, its tokenizer, and the device that it runs on.

    `state_bytes` are those of one sequence. `blocks` counts the matrices that stay in the blocks of the file, by type.
    `parts` are empty unless the model lies on several devices.
    An `unloaded` model is loaded at the next request for it, unless an admin has unloaded it.
    """

    version: str
    num_layers: int
    width: int
    num_heads: NotRequired[int]
    head_size: NotRequired[int]
    ffn_width: int
    vocab_size: int
    device: str
    device_bytes: int | None
    parts: list[DevicePartEntry]
    weights: str
    blocks: dict[str, int]
    num_slots: int
    max_logprobs: int
    tokenizer: str
    loras: list[LoraEntry]
    state_bytes: int
    chat_template: dict[str, str] | str
    embedding: EmbeddingMeta | None
    status: ModelStatus


class Capabilities(TypedDict):
    """What a model can do, in Mistral's form. A model made for embedding writes no text."""

    completion_chat: bool
    function_calling: bool
    completion_fim: Literal[False]


class ModelEntry(TypedDict):
    """A model. `type` and `capabilities` are those of Mistral's API; its package needs them.

    `max_model_len` is the most tokens of a prompt, since a state has no fixed context.
    `parent` is the model that was tuned; absent in models that are no tuned state of another.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["rnn-engine"]
    type: Literal["base"]
    max_model_len: int
    capabilities: Capabilities
    meta: ModelMeta
    parent: NotRequired[str]


class HealthBody(TypedDict):
    """The health of the server: if it takes requests, and how busy it is.

    Every `status` except `ok` comes with HTTP status 503; see Readiness. `model` is the default one. `requests` counts
    HTTP requests, `active` and `queued` the engines' requests that hold a slot or wait for one. `parts` has the loaded
    models that lie on several devices.
    """

    status: HealthStatus
    model: str
    models: dict[str, ModelStatus]
    parts: dict[str, list[DevicePartEntry]]
    requests: int
    active: int
    queued: int
    cache_look_ups: int
    cache_hits: int


class Readiness(TypedDict):
    """The health of the server or of an engine, as a word with a reason.

    `checking`: something failed, and a token is run to see whether the device answers. `recovering`: the device was
    lost and the model is loaded again. `stalled`: the device has not answered for `seconds`. `closing`: the server
    stops. `failed`: the engine has stopped for good, by itself.
    """

    status: HealthStatus
    reason: str | None
    seconds: float


def device_parts(info: EngineInfo) -> list[DevicePartEntry]:
    """Return the layers on each device of a model on several devices; an empty list for other models."""
    return [described(DevicePartEntry, part) for part in info.parts]


def model_entry(model: ServedModel, limits: Limits) -> ModelEntry:
    """Return the description of a served model that clients get.

    Raises ModelNotFoundError while it is loaded for the first time.
    """
    info = model.info
    if info is None:
        raise ModelNotFoundError(f"model: {model.name!r} is being loaded for the first time")
    has_head = info.shape.has_head
    meta = {
        "version": info.shape.version,
        **info.shape.sizes,
        "device": info.device,
        "device_bytes": info.device_bytes,
        "parts": device_parts(info),
        "weights": info.weights,
        "blocks": dict(info.blocks),
        "num_slots": info.num_slots,
        "max_logprobs": info.max_logprobs,
        "tokenizer": info.tokenizer,
        "loras": [{"name": lora.path.name, "alpha": lora.alpha} for lora in info.loras],
        "state_bytes": info.shape.state_bytes,
        "chat_template": info.chat_template.source,
        "embedding": None if info.embedding is None else described(EmbeddingMeta, info.embedding),
        "status": model.status,
    }
    return {
        "id": model.name,
        "object": "model",
        "created": info.created,
        "owned_by": "rnn-engine",
        "type": "base",
        "max_model_len": limits.max_prompt_tokens,
        "capabilities": {"completion_chat": has_head, "function_calling": has_head, "completion_fim": False},
        "meta": cast(ModelMeta, meta),  # TypedDict can't be checked where keys depend on the version
    }


def _tuned_entry(model: ServedModel, named: NamedState, limits: Limits) -> ModelEntry:
    """Return the entry of a model that starts from a named state."""
    entry = model_entry(model, limits)
    return {**entry, "id": f"{model.name}:{named.name}", "created": int(named.created), "parent": model.name}


ROUTES = RouteTable()


@ROUTES.get("/v1/models", "/models", "/api/oai/models", "/api/oai/v1/models", uses_model=False)
async def list_models(call: Call) -> ListOf[ModelEntry]:
    """The models that are served."""
    limits = call.limits
    models = [model for model in call.app[MODELS] if model.info is not None]
    tuned = [
        _tuned_entry(call.app[MODELS].find(name), named, limits)
        for name, engine in open_engines_of(call).items()
        for named in (await engine.states.list()).entries
        if named.plain_name.startswith(TUNED_PREFIX)
    ]
    return {"object": "list", "data": [*(model_entry(model, limits) for model in models), *tuned]}


@ROUTES.get(f"/v1/models/{{model:{REST}}}", uses_model=False)
async def get_model(call: Call) -> ModelEntry:
    """The model of that name."""
    model, state = call.app[MODELS].find_state(call.parameters["model"])
    limits = call.limits
    if state is None:
        return model_entry(model, limits)
    engine = open_engines_of(call).get(model.name)
    named = None if engine is None else await engine.states.find(state)
    if named is None:
        raise ModelNotFoundError(f"model: the model {model.name!r} has no state {state[:80]!r}, or is not loaded")
    return _tuned_entry(model, named, limits)


@ROUTES.delete(f"/v1/models/{{model:{REST}}}", scope=Scope.MANAGE)
async def delete_model(call: Call) -> Deleted:
    """Delete a model that was tuned: its state, and the file of a LoRA that a job has made."""
    name = call.parameters["model"]
    model, state = call.app[MODELS].find_state(name)
    if state is None:
        raise InvalidRequestError("model", name, "MODEL:STATE, a model that was tuned; others can't be deleted")
    owner, has_file = call.principal.name, False
    with suppress(NotFoundError):
        await call.app[FILES].delete(owner, lora_file_id(owner, f"{model.name}:{state}"))
        has_file = True
    try:
        await call.model.choose(name)
        await call.engine.states.delete(state)
    except NotFoundError:  # a LoRA that the server has no room to run is only a file
        if not has_file:
            raise
    return deleted(name, "model")
