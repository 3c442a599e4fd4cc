"""What the cache counts. Whole numbers that only grow, so any thread may read them at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from states.cache.checkpoint import MissReason, Tier
from states.cache.eviction import EvictionQueue


class Counters:
    """The running counts."""

    def __init__(self) -> None:
        self.look_ups = 0
        self.tokens_looked_up = 0
        self.tokens_saved = 0
        self.exact_hits = 0  # nothing had to be run
        self.hits: Counter[Tier] = Counter()  # by the quickest tier that had a copy
        self.misses: Counter[MissReason] = Counter()
        self.stored: Counter[Tier] = Counter()  # new checkpoints, by the tier that took them
        self.not_stored = 0  # no tier had room
        self.promotions: Counter[Tier] = Counter()  # copies made on a hit, by the tier that took them
        self.demotions: Counter[Tier] = Counter()  # copies made at an eviction, by the tier that took them
        self.evictions: Counter[Tier] = Counter()  # copies that gave way, by the tier that lost them
        self.writes_refused = 0  # copies that were not made because the writer was too far behind
        self.lost_files = 0  # damaged, vanished or never written


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier at one moment."""

    tier: Tier
    capacity: int  # bytes
    used: int  # bytes
    copies: int
    hits: int
    stored: int
    promotions: int
    demotions: int
    evictions: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The cache at one moment."""

    look_ups: int
    hits: int
    exact_hits: int
    tokens_looked_up: int
    tokens_saved: int
    misses: dict[MissReason, int]
    not_stored: int
    writes_refused: int
    lost_files: int
    checkpoints: int
    path_marks: int
    device_logits_bytes: int  # host memory beside the device tier's slabs
    tiers: tuple[TierStats, ...]


def collect_stats(
    counters: Counters, ledgers: Iterable[EvictionQueue], checkpoints: int, path_marks: int, device_logits_bytes: int
) -> CacheStats:
    """The counts together with the sizes of the tiers that there are."""
    return CacheStats(
        look_ups=counters.look_ups,
        hits=sum(counters.hits[tier] for tier in Tier),
        exact_hits=counters.exact_hits,
        tokens_looked_up=counters.tokens_looked_up,
        tokens_saved=counters.tokens_saved,
        misses={reason: counters.misses[reason] for reason in MissReason},
        not_stored=counters.not_stored,
        writes_refused=counters.writes_refused,
        lost_files=counters.lost_files,
        checkpoints=checkpoints,
        path_marks=path_marks,
        device_logits_bytes=device_logits_bytes,
        tiers=tuple(_tier_stats(counters, ledger) for ledger in ledgers),
    )


def _tier_stats(counters: Counters, ledger: EvictionQueue) -> TierStats:
    tier = ledger.tier
    return TierStats(
        tier=tier,
        capacity=ledger.capacity,
        used=ledger.used,
        copies=len(ledger),
        hits=counters.hits[tier],
        stored=counters.stored[tier],
        promotions=counters.promotions[tier],
        demotions=counters.demotions[tier],
        evictions=counters.evictions[tier],
    )
