"""The bodies of /v1/models and /health."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from rnn_engine.health import HealthStatus
from server.models.served import ModelStatus


class LoraEntry(TypedDict):
    """A LoRA that is merged into the model. `alpha` is null where its own counts."""

    name: str
    alpha: float | None


class ModelMeta(TypedDict):
    """A model's sizes, which depend on its version, and what it runs on.

    `state_bytes` are those of one sequence. One that is `unloaded` is loaded at the next request for it, unless an
    admin has unloaded it.
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
    weights: str
    num_slots: int
    max_logprobs: int
    tokenizer: str
    loras: list[LoraEntry]
    state_bytes: int
    chat_template: dict[str, str] | str
    status: ModelStatus


class ModelEntry(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["rnn-engine"]
    meta: ModelMeta


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelEntry]


class Health(TypedDict):
    """All but `ok` come with status 503; see Readiness. `model` is the default one. `requests` counts HTTP requests,
    the next two what the engines run of them."""

    status: HealthStatus
    model: str
    models: dict[str, ModelStatus]
    requests: int
    active: int
    queued: int
    cache_look_ups: int
    cache_hits: int


class Readiness(TypedDict):
    """`checking`: something failed, and a token is run to see whether the device answers. `recovering`: the device was
    lost and the model is loaded again. `stalled`: the device has not answered for so many `seconds`. `closing`: the
    server stops. `failed`: the engine has stopped by itself, for good."""

    status: HealthStatus
    reason: str | None
    seconds: float
