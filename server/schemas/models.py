"""The bodies of /v1/models and /health."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict


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
    """`closing` and `failed` (the engine has stopped by itself) come with status 503; `requests` counts HTTP requests,
    the next two what the engine runs of them."""

    status: Literal["ok", "closing", "failed"]
    model: str
    requests: int
    active: int
    queued: int
    cache_look_ups: int
    cache_hits: int
