"""How an engine stands, as clients see it."""

from __future__ import annotations

from collections.abc import Iterator

from rnn_engine.health import Health
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.telemetry import EngineCounters, SlotUse
from server.formatting.cache import cache_tier, cache_totals
from server.schemas.engine_status import EngineStatus, MemoryPart, SlotPhase, SlotStatus, StepCounts, TokenCounts
from server.schemas.models import Readiness
from states.cache.counters import CacheStats
from states.named.registry import RegistryUsage


def engine_status(name: str, engine: EngineLike) -> EngineStatus:
    """Return what `engine` tells at this moment."""
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
        "tokens": _tokens(counters),
        "steps": _steps(counters),
        "cache": None if cache is None else cache_totals(cache),
        "tiers": [] if cache is None else [cache_tier(tier) for tier in cache.tiers],
        "memory": list(_memory(info, cache, engine.states.usage())),
    }


def readiness(health: Health) -> Readiness:
    """Return what is told of an engine's health."""
    return {"status": health.status, "reason": health.reason, "seconds": round(health.seconds, 1)}


def _slot(use: SlotUse) -> SlotStatus:
    phase: SlotPhase = "prompt" if use.run_tokens < use.prompt_tokens else "decode"
    return {
        "slot": use.slot,
        "request": use.request,
        "phase": "paused" if use.paused else phase,
        "owner": use.scope or None,
        "prompt_tokens": use.prompt_tokens,
        "cached_tokens": use.cached_tokens,
        "run_tokens": use.run_tokens,
        "generated_tokens": use.generated_tokens,
        "max_tokens": use.max_tokens,
    }


def _tokens(counters: EngineCounters) -> TokenCounts:
    return {
        "prompt": int(counters.prompt_tokens.sum),
        "cached": counters.cached_tokens,
        "prefill": counters.prefill_tokens,
        "decode": counters.decode_tokens,
        "generated": counters.generated_tokens,
    }


def _steps(counters: EngineCounters) -> StepCounts:
    return {
        "steps": counters.steps,
        "failed": counters.failed_steps,
        "tokens": int(counters.step_tokens.sum),
        "host_seconds": counters.step_host_seconds.sum,
        "device_seconds": counters.step_device_seconds.sum,
    }


def _memory(info: EngineInfo, cache: CacheStats | None, states: RegistryUsage) -> Iterator[MemoryPart]:
    """Yield the parts of memory. Slots and the cache's part of the device are set aside when the model is loaded."""
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
