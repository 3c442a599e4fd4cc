"""Routes that report the status of the server and its models: health, slots, counts, times, memory, limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Literal, TypeAlias

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector
from typing_extensions import TypedDict

from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.sampling.params import PARAMETERS
from rnn_engine.telemetry import Health, SlotUse
from rnn_engine_server.apis.common.generation import GenerationBody
from rnn_engine_server.apis.engine.cache import CacheTier, CacheTotals, cache_totals
from rnn_engine_server.apis.openai.models import HealthBody, Readiness, device_parts
from rnn_engine_server.auth.engine import open_engines_of
from rnn_engine_server.connections import CONNECTIONS
from rnn_engine_server.core.bodies import query_seconds
from rnn_engine_server.core.call import BUDGET, Call
from rnn_engine_server.core.errors import retry_headers
from rnn_engine_server.core.handlers import Answer, Encoded, RouteTable, repeated
from rnn_engine_server.core.routing import EVENTS, LIFECYCLE, SETTINGS
from rnn_engine_server.core.schema import described
from rnn_engine_server.models.registry import MODELS, ModelStatus, ServedModel
from rnn_engine_server.telemetry.metrics import METRICS
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.named.table import StateUsage

SlotPhase: TypeAlias = Literal["prompt", "decode", "paused"]


class SlotStatus(TypedDict):
    """The status of one slot that a request holds. A request that mixes states holds several slots.

    `request` is a number that no other request of the model has. `owner` is the name of the API key that sent the
    request, null if it is unknown or this key may not see it. The state has taken in `run_tokens` of the prompt and the
    answer; `cached_tokens` of these came from the cache and were not run. The phase is `paused` while the client reads
    too slowly.
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
    """A model's token counts since it was loaded.

    `prompt` counts those of prompts; `cached` of them came from the cache and were not run. The device has run
    `prefill` tokens of prompts and `decode` tokens of answers. `generated` counts the sampled tokens.
    """

    prompt: int
    cached: int
    prefill: int
    decode: int
    generated: int


class StepCounts(TypedDict):
    """A model's counts of steps and of the tokens in them since it was loaded, and the time that the steps took.

    During `host_seconds` the host worked and the device waited; `device_seconds` passed on the device.
    """

    steps: int
    failed: int
    tokens: int
    host_seconds: float
    device_seconds: float


class MemoryPart(TypedDict):
    """One use of memory: the bytes in use, and the most that it may use, null if it has no bound.

    `place` is `device`, `host`, or another tier of the cache. On the device there are `weights` (with the buffers of a
    step), `slots` (the states of running requests) and `cache`; on the host `cache`, `cache_index`, `named_states`.
    """

    place: str
    part: Literal["weights", "slots", "cache", "cache_index", "named_states"]
    used: int
    capacity: int | None


class EngineStatus(TypedDict):
    """The status of a loaded model.

    Counts are since it was loaded; `requests` counts the ended ones by how they ended.
    """

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
    """The progress of loading a model: `done` of `total` parts of the running step `what` are done."""

    what: str
    done: int
    total: int


class ServerStatus(TypedDict):
    """The status of the server and its models at `time`, in Unix seconds.

    `default` is the model of requests that name none. `loading` has the progress of models that are being loaded, null
    before the first report. `model_folder` is true if there is a folder from which admins may load. `cpu_seconds` and
    `resident_bytes` are those of the process, null if the system does not report them. `body_bytes` is the memory that
    the bodies of running requests take, at most `body_capacity`.
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


class Props(TypedDict):
    """The properties of the server: its default model, the defaults of requests, and its limits.

    `chat_template` is a Jinja template. `default_generation_settings` has the defaults of requests' fields. Its `n_ctx`
    is the most tokens of a prompt, since a state has no context of a fixed length. `limits` and `connections` are
    options of `rnn-engine serve`.
    """

    model_path: str
    model_alias: str
    build_info: str
    modalities: dict[str, bool]
    bos_token: str
    eos_token: str
    is_sleeping: Literal[False]
    total_slots: int
    chat_template: str
    default_generation_settings: dict[str, int | float | str | list[str] | dict[str, float] | None]
    limits: dict[str, int]
    connections: dict[str, float]


def engine_status(name: str, engine: EngineLike) -> EngineStatus:
    """Return the status of the model `name` and its engine at this moment."""
    info, counters, cache = engine.info, engine.counters(), engine.cache_stats()
    return {
        "model": name,
        "health": readiness(engine.health()),
        "device": info.device,
        "weights": info.weights,
        "num_slots": info.num_slots,
        "slots": [_slot(use) for use in engine.slot_uses()],
        "queued": engine.stats().queued,
        "requests": {outcome.value: count for outcome, count in counters.outcomes.items()},
        "tokens": {
            "prompt": int(counters.prompt_tokens.sum),
            "cached": counters.cached_tokens,
            "prefill": counters.prefill_tokens,
            "decode": counters.decode_tokens,
            "generated": counters.generated_tokens,
        },
        "steps": {
            "steps": counters.steps,
            "failed": counters.failed_steps,
            "tokens": int(counters.step_tokens.sum),
            "host_seconds": counters.step_host_seconds.sum,
            "device_seconds": counters.step_device_seconds.sum,
        },
        "cache": None if cache is None else cache_totals(cache),
        "tiers": [] if cache is None else [described(CacheTier, tier) for tier in cache.tiers],
        "memory": list(_memory(info, cache, engine.states.usage())),
    }


def readiness(health: Health) -> Readiness:
    """Return an engine's health in the form in which clients get it."""
    return {"status": health.status, "reason": health.reason, "seconds": round(health.seconds, 1)}


def _slot(use: SlotUse) -> SlotStatus:
    phase: SlotPhase = "prompt" if use.run_tokens < use.prompt_tokens else "decode"
    return described(SlotStatus, use, phase="paused" if use.paused else phase, owner=use.scope or None)


def _memory(info: EngineInfo, cache: CacheStats | None, states: StateUsage) -> Iterator[MemoryPart]:
    """Yield a description of each use of memory: the weights, the slots, the tiers of the cache and the named states.

    Slots and the cache on the device are allocated when the model is loaded.
    """
    tiers = () if cache is None else cache.tiers
    if info.device_bytes is not None:
        slots = info.num_slots * info.shape.state_bytes
        kept = sum(tier.capacity for tier in tiers if tier.tier == "device")
        rest = max(info.device_bytes - slots - kept, 0)
        yield {"place": "device", "part": "weights", "used": rest, "capacity": None}
        yield {"place": "device", "part": "slots", "used": slots, "capacity": None}
    for tier in tiers:
        yield {"place": tier.tier, "part": "cache", "used": tier.used, "capacity": tier.capacity}
    if cache is not None:
        yield {"place": "host", "part": "cache_index", "used": cache.index_bytes, "capacity": cache.index_capacity}
    yield {"place": "host", "part": "named_states", "used": states.num_bytes, "capacity": states.capacity}


# The status of the engines: their slots, counts and memory.

_SECONDS, _LEAST_SECONDS, _MOST_SECONDS = 1.0, 0.1, 60.0
_PROCESS = ProcessCollector(registry=None)


ROUTES = RouteTable()


@ROUTES.get("/v1/engine", routine=True, uses_model=False)
async def status(call: Call) -> ServerStatus:
    """The state of the engines: slots and the requests in them, counts, times, memory."""
    app = call.app
    process = {sample.name: sample.value for metric in _PROCESS.collect() for sample in metric.samples}
    resident = process.get("process_resident_memory_bytes")
    return {
        "object": "engine.status",
        "time": time.time(),
        "started": app[METRICS].started,
        "requests": app[LIFECYCLE].active,
        "connections": app[CONNECTIONS].open,
        "body_bytes": app[BUDGET].held,
        "body_capacity": app[BUDGET].capacity,
        "cpu_seconds": process.get("process_cpu_seconds_total"),
        "resident_bytes": None if resident is None else int(resident),
        "default": app[MODELS].default.name,
        "model_folder": app[SETTINGS].model_folder is not None,
        "models": {model.name: model.status for model in app[MODELS]},
        "loading": {model.name: _progress(model) for model in app[MODELS] if model.status == "loading"},
        "engines": [engine_status(name, engine) for name, engine in open_engines_of(call).items()],
    }


@ROUTES.get(
    "/v1/engine/events",
    answer=ServerStatus,
    content_type=EVENTS,
    query={
        "interval": f"Seconds between two events: {_SECONDS:g} by default, from {_LEAST_SECONDS:g} to "
        f"{_MOST_SECONDS:g}."
    },
    routine=True,
    uses_model=False,
)
async def events(call: Call) -> Answer:
    """The state of the engines: slots and the requests in them, counts, times, memory.

    It is a stream of events that ends when the server stops or the time for a request is up.
    """
    seconds = query_seconds(call, "interval", _SECONDS, _LEAST_SECONDS, _MOST_SECONDS)
    return await repeated(call, seconds, partial(status, call))


def _progress(model: ServedModel) -> LoadingStatus | None:
    progress = model.progress
    return None if progress is None else described(LoadingStatus, progress)


# Health of the server: whether it takes requests, why not, and how busy it is.


_QUERY = {"model": "Only this model; without it, all models."}


@ROUTES.get("/health", "/v1/health", answer=HealthBody, also_answers={503: HealthBody}, always=True)
async def health(call: Call) -> Encoded:
    """Whether the server takes requests, and how busy it is."""
    models, lifecycle = call.app[MODELS], call.app[LIFECYCLE]
    found = _find_health(call)
    engines = {model.name: model.open_engine for model in models if model.open_engine is not None}
    stats = [engine.stats() for engine in engines.values()]
    caches = [cache for engine in engines.values() if (cache := engine.cache_stats()) is not None]
    body: HealthBody = {
        "status": found.status,
        "model": models.default.name,
        "models": {model.name: model.status for model in models},
        "parts": {name: parts for name, engine in engines.items() if (parts := device_parts(engine.info))},
        "requests": lifecycle.active,
        "active": sum(each.active for each in stats),
        "queued": sum(each.queued for each in stats),
        "cache_look_ups": sum(cache.look_ups for cache in caches),
        "cache_hits": sum(cache.hits for cache in caches),
    }
    return Encoded.of(body, status=200 if found.status == "ok" else 503)


@ROUTES.get("/health/ready", answer=Readiness, also_answers={503: Readiness}, always=True, query=_QUERY)
async def ready(call: Call) -> Encoded:
    """Whether the server is ready for requests; if not, 503 with the reason."""
    found = _find_health(call)
    return _answer(found, healthy=found.status == "ok")


@ROUTES.get("/health/live", answer=Readiness, also_answers={503: Readiness}, always=True, query=_QUERY)
async def live(call: Call) -> Encoded:
    """503 if only a restart helps: the engine has failed, or its device no longer answers."""
    found = _find_health(call)
    return _answer(found, healthy=found.status not in ("failed", "stalled"))


def _find_health(call: Call) -> Health:
    """Return the health of the model that the query names, or of all models together if it names none."""
    name, models = call.query.get("model"), call.app[MODELS]
    found = models.health() if name is None else models.find(name).health
    if call.app[LIFECYCLE].closing and found.status != "failed":
        return Health("closing", "the server is stopping and takes no new requests")
    return found


def _answer(found: Health, *, healthy: bool) -> Encoded:
    body = readiness(found)
    if healthy:
        return Encoded.of(body)
    return Encoded.of(body, status=503, headers=retry_headers(found.retry_after))


_STARTED = "Process-Start-Time-Unix"  # a header of llama-server's


@ROUTES.get("/metrics", answer=None, content_type="text/plain", routine=True, uses_model=False)
async def metrics(call: Call) -> Encoded:
    """Counts, times and sizes for Prometheus: [metrics.md](metrics.md)."""
    found = call.app[METRICS]
    body, headers = await asyncio.to_thread(found.render), {_STARTED: str(found.started)}
    return Encoded(body, CONTENT_TYPE_PLAIN_0_0_4, headers=headers)


# Facts of the server: its limits, and the defaults of requests.


@ROUTES.get("/props")
async def props(call: Call) -> Props:
    """Properties of the server, such as its limits, in llama-server's form."""
    engine, settings = call.engine, call.app[SETTINGS]
    info = engine.info
    defaults = {parameter.name: parameter.default for parameter in PARAMETERS}
    return {
        "model_path": info.model,
        "model_alias": info.model,
        "build_info": f"rnn-engine {version('rnn-engine')}",
        "modalities": {"vision": False, "audio": False},
        "bos_token": "",
        "eos_token": info.end_text or "",
        "is_sleeping": False,
        "total_slots": info.num_slots,
        "chat_template": info.chat_template.as_jinja,
        "default_generation_settings": {
            "n_ctx": settings.limits.max_prompt_tokens,
            **defaults,
            "max_tokens": GenerationBody.model_fields["max_tokens"].default,
            "n": GenerationBody.model_fields["n"].default,
        },
        "limits": asdict(settings.limits),
        "connections": asdict(settings.connections),
    }
