"""The bodies of /v1/models and /health."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from rnn_engine.health import HealthStatus


class LoraEntry(TypedDict):
    """A LoRA that is merged into the model. `alpha` is null where its own counts."""

    name: str
    alpha: float | None


class ModelMeta(TypedDict):
    """A model's sizes, which depend on its version, and what it runs on."""

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
    """All but `ok` come with status 503; see Readiness. `requests` counts HTTP requests, the next two what the engine
    runs of them."""

    status: HealthStatus
    model: str
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
