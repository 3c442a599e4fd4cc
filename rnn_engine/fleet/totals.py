"""The counts of many replicas as those of one engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from rnn_engine.fleet.wire import Report
from rnn_engine.telemetry import EngineCounters, Histogram, SlotUse
from states.cache.counters import CacheStats, TierStats
from states.shared.counters import StoreCounters

_OF_REQUESTS = frozenset({"request_seconds", "prompt_tokens", "completion_tokens", "cached_tokens", "outcomes"})
"""What a front counts by itself, since it sees all of its requests, those that no replica ran among them."""


def total_counters(own: EngineCounters, replicas: Iterable[EngineCounters]) -> EngineCounters:
    """Return the sum of what replicas count, with what the front itself counts of requests."""
    total = EngineCounters()
    for name in _OF_REQUESTS:
        setattr(total, name, getattr(own, name))
    for counters in replicas:
        for name, value in vars(counters).items():
            if name in _OF_REQUESTS:
                continue
            if isinstance(value, Histogram):
                _add(getattr(total, name), value)
            else:
                setattr(total, name, getattr(total, name) + value)
    return total


def total_cache_stats(replicas: Sequence[CacheStats]) -> CacheStats | None:
    """Return the sum of what caches count; None where there is none."""
    if not replicas:
        return None
    tiers: dict[str, TierStats] = {}
    total = CacheStats(())
    for stats in replicas:
        for tier in stats.tiers:
            _add_fields(tiers.setdefault(tier.tier, TierStats(tier.tier, 0)), tier)
        _add_fields(total, stats)
        for reason, count in stats.misses.items():
            total.misses[reason] += count
    total.tiers = tuple(tiers.values())
    total.store = total_store_counters(stats.store for stats in replicas)
    return total


def total_store_counters(clients: Iterable[StoreCounters | None]) -> StoreCounters | None:
    """Return the sum of what clients of a shared store count; None where there is none."""
    known = [counters for counters in clients if counters is not None]
    if not known:
        return None
    total = StoreCounters()
    for counters in known:
        for outcome, count in counters.outcomes.items():
            total.outcomes[outcome] += count
        total.read_bytes += counters.read_bytes
        total.written_bytes += counters.written_bytes
        total.seconds += counters.seconds
        total.circuit_open |= counters.circuit_open
        total.circuit_openings += counters.circuit_openings
        total.unreadable += counters.unreadable
    return total


def all_slot_uses(reports: Iterable[Report]) -> list[SlotUse]:
    """Return what the slots of all replicas are used for, numbered through, the oldest request of each first."""
    uses: list[SlotUse] = []
    first = 0
    reports = list(reports)
    for number, report in enumerate(reports):
        for use in report.slots:
            request = use.request * len(reports) + number
            uses.append(replace(use, slot=first + use.slot, request=request))
        first += report.info.num_slots
    return uses


def _add(total: Histogram, more: Histogram) -> None:
    total.counts = [count + other for count, other in zip(total.counts, more.counts, strict=True)]
    total.sum += more.sum


def _add_fields(total: CacheStats | TierStats, more: CacheStats | TierStats) -> None:
    for field in fields(total):
        value = getattr(more, field.name)
        if isinstance(value, int):
            setattr(total, field.name, getattr(total, field.name) + value)
