"""What the cache counts, and how full it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from states.cache.checkpoint import MissReason
from states.shared.counters import StoreCounters


@dataclass(slots=True)
class TierStats:
    """Counts of a tier since the start and, in what `StateCache.stats` returns, its sizes at that moment."""

    tier: str
    capacity: int  # bytes
    used: int = 0  # bytes
    copies: int = 0
    hits: int = 0  # look-ups for which it was the quickest tier that had a copy
    stored: int = 0  # new checkpoints that it took
    promotions: int = 0  # copies that it got because of a hit
    demotions: int = 0  # copies that it got because a quicker tier was full
    evictions: int = 0  # copies that gave way in it


@dataclass(slots=True)
class CacheStats:
    """Counts since the start and, in what `StateCache.stats` returns, sizes at that moment."""

    tiers: tuple[TierStats, ...]  # the quickest first
    look_ups: int = 0
    hits: int = 0
    exact_hits: int = 0  # nothing had to be run
    tokens_looked_up: int = 0
    tokens_saved: int = 0
    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(MissReason, 0))
    not_stored: int = 0  # no tier had room
    writes_refused: int = 0  # copies that were not made because the writer was too far behind
    lost_files: int = 0  # damaged, vanished or never written
    failed_writes: int = 0  # files that the disk did not take
    checkpoints: int = 0
    ghosts: int = 0  # known paths whose states are gone
    device_logits_bytes: int = 0  # host memory beside the device tier's slabs
    index_bytes: int = 0  # an estimate of the host memory besides the copies: tokens, records, logits of device copies
    index_capacity: int = 0  # the bound on `index_bytes`
    store: StoreCounters | None = None  # of the store that servers share; None without one
