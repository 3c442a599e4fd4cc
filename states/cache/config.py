"""The settings of the cache, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rnn_engine.errors import check_finite
from states.cache.checkpoint import MissReason
from states.frozen import Precision
from states.shared.client import StoreCounters
from states.shared.config import StoreConfig


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


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The disk tier. `folder` belongs to one process at a time."""

    folder: Path
    capacity: int = 2 << 30  # bytes
    precision: Precision = "f32"
    background_bytes: int = 256 << 20  # what may wait for the writing thread; 0 = write at once on the caller's thread
    write_after: float = 5.0  # seconds after which a state is written though it still has room in memory

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("write_after", self.write_after)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Bounds in bytes; a tier of 0 or None keeps nothing."""

    host_capacity: int = 256 << 20
    host_precision: Precision = "f32"
    disk: DiskConfig | None = None
    store: StoreConfig | None = None
    max_mark_tokens: int = 1 << 22  # lengths of the known paths that have lost their states, in all
    index_capacity: int | None = None  # what is kept on the host besides the copies; None: see `index_bytes`
    device_capacity: int = 128 << 20  # for whoever makes the pool: it bounds the device tier
    fetch_capacity: int = 256 << 20  # what may be read from slow tiers for requests that still wait

    def index_bytes(self, device_bytes: int) -> int:
        """The bound on tokens of prompts, records of checkpoints and ghost entries, and the logits of device copies.

        `device_bytes` is the size of the device tier.
        """
        if self.index_capacity is not None:
            return self.index_capacity
        disk = 0 if self.disk is None else self.disk.capacity
        store = 0 if self.store is None else self.store.index_bytes
        return (1 << 20) + (self.host_capacity + device_bytes) // 4 + disk // 64 + store

    @property
    def keeps_nothing(self) -> bool:
        return self.device_capacity == 0 and self.host_capacity == 0 and self.disk is None and self.store is None
