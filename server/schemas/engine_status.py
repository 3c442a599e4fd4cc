"""The bodies of /v1/engine."""

from __future__ import annotations

from typing import Literal, TypeAlias

from typing_extensions import TypedDict

from server.models.served import ModelStatus
from server.schemas.cache import CacheTier, CacheTotals
from server.schemas.models import Readiness

SlotPhase: TypeAlias = Literal["prompt", "decode", "paused"]


class SlotStatus(TypedDict):
    """A slot that a request holds. A mix holds several.

    `request` is a number that no other request of the model has. `owner` is the name of the API key whose request it
    is, null where that is not known or not for this key to see. `run_tokens` of the prompt and the answer are in the
    state, `cached_tokens` of them without being run. `paused`: the client reads too slowly.
    """

    slot: int
    request: int
    phase: SlotPhase
    owner: str | None
    prompt_tokens: int
    cached_tokens: int
    run_tokens: int
    generated_tokens: int
    max_tokens: int


class TokenCounts(TypedDict):
    """Tokens of prompts, those of them that were not run, tokens that went through the model, and generated ones."""

    prompt: int
    cached: int
    prefill: int
    decode: int
    generated: int


class StepCounts(TypedDict):
    """Steps, tokens in them, and their seconds: on the host while the device has nothing to do, and on the device."""

    steps: int
    failed: int
    tokens: int
    host_seconds: float
    device_seconds: float


class MemoryPart(TypedDict):
    """Bytes that a part takes, of those that it may take at most, where there is a bound.

    `place` is `device`, `host`, or another tier of the cache. On the device there are `weights` (with the buffers of a
    step), `slots` (the states of running requests) and `cache`; on the host `cache`, `cache_index`, `named_states`.
    """

    place: str
    part: Literal["weights", "slots", "cache", "cache_index", "named_states"]
    used: int
    capacity: int | None


class EngineStatus(TypedDict):
    """A model that is loaded. Counts are since it was loaded; `requests` has how many ended in which way."""

    model: str
    health: Readiness
    device: str
    weights: str
    num_slots: int
    slots: list[SlotStatus]
    queued: int
    requests: dict[str, int]
    tokens: TokenCounts
    steps: StepCounts
    cache: CacheTotals | None
    tiers: list[CacheTier]
    memory: list[MemoryPart]


class LoadingStatus(TypedDict):
    """What a load does, and how many parts of it are done."""

    what: str
    done: int
    total: int


class ServerStatus(TypedDict):
    """How a server stands at `time`, Unix seconds. `default` is the model of requests that name none, `loading` has
    the models that are being loaded, with null for what has told nothing yet; `model_folder` says whether there is a
    folder from which admins may load.

    `cpu_seconds` and `resident_bytes` are those of the process, null where the system does not tell. `body_bytes` is
    what the bodies of running requests take, of `body_capacity`.
    """

    object: Literal["engine.status"]
    time: float
    started: int
    requests: int
    connections: int
    body_bytes: int
    body_capacity: int
    cpu_seconds: float | None
    resident_bytes: int | None
    default: str
    model_folder: bool
    models: dict[str, ModelStatus]
    loading: dict[str, LoadingStatus | None]
    engines: list[EngineStatus]
