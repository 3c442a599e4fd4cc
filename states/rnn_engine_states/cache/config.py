"""The settings and the counters of the state cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rnn_engine.bounds import FOLDER, SECONDS, SIZE, Kind, Settings, described, optional_part, setting
from rnn_engine_states.cache.checkpoint import MissReason
from rnn_engine_states.shared.config import StoreConfig, StoreCounters

if TYPE_CHECKING:
    from rnn_engine_states.frozen import Precision


@dataclass(slots=True)
class TierStats:
    """Counters of one tier of the state cache since its start. `StateCache.stats` returns them with current sizes."""

    tier: str
    capacity: int  # bytes
    used: int = 0  # bytes
    copies: int = 0
    hits: int = 0  # look-ups for which it was the quickest tier that had a copy
    stored: int = 0  # new checkpoints that it accepted
    promotions: int = 0  # copies added to it because of a hit
    demotions: int = 0  # copies added to it because a quicker tier was full
    evictions: int = 0  # copies that were evicted from it


@dataclass(slots=True)
class CacheStats:
    """Counters of the state cache since its start. `StateCache.stats` returns them with current sizes."""

    tiers: tuple[TierStats, ...]  # the quickest first
    look_ups: int = 0
    hits: int = 0
    exact_hits: int = 0  # hits at the end of the prompt: nothing had to be run
    tokens_looked_up: int = 0
    tokens_saved: int = 0
    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(MissReason, 0))
    not_stored: int = 0  # states that were not kept, for lack of room
    writes_refused: int = 0  # copies that were not made because a slow tier was too busy
    lost_files: int = 0  # copies that turned out to be damaged, missing or never written
    failed_writes: int = 0  # copies that the disk or the shared store did not accept
    checkpoints: int = 0
    ghosts: int = 0  # known paths whose states are gone
    device_logits_bytes: int = 0  # host memory for the logits of copies in the device tier
    index_bytes: int = 0  # an estimate of the host memory besides the copies: tokens, records, logits of device copies
    index_capacity: int = 0  # the bound on `index_bytes`
    store: StoreCounters | None = None  # counters of the shared store; None without one

    def without_sizes(self) -> CacheStats:
        """Return the counters with all current sizes set to zero, for a cache that no longer exists."""
        return replace(
            self,
            tiers=tuple(replace(tier, capacity=0, used=0, copies=0) for tier in self.tiers),
            checkpoints=0,
            ghosts=0,
            device_logits_bytes=0,
            index_bytes=0,
            index_capacity=0,
            store=None if self.store is None else replace(self.store, circuit_open=False),
        )


@dataclass(frozen=True, slots=True)
class DiskConfig(Settings):
    """The settings of the state cache's tier on disk. Only one process at a time may use `folder`."""

    folder: Path = field(
        metadata=described(
            "Also keep states in files of this folder, over restarts. Only one server at a time may use it.",
            FOLDER,
            "--cache-folder",
        )
    )
    capacity: int = setting(2 << 30, SIZE, "--cache-disk-bytes").help("The most bytes in the files of --cache-folder.")
    precision: Precision = "f32"
    background_bytes: int = 256 << 20  # bound on what waits for the writing thread; 0 = the caller waits for each write
    write_after: float = setting(5.0, SECONDS, "--cache-write-after").help(
        "Write a state to --cache-folder once it is this old, even if memory has room for it, so that a crash loses "
        "only newer states."
    )


@dataclass(frozen=True, slots=True)
class CacheConfig(Settings):
    """The settings of the state cache. Capacities are in bytes; a tier with capacity 0 or None stores nothing."""

    host_capacity: int = setting(256 << 20, SIZE, "--cache-host-bytes").help(
        "This computer's memory for states of prompts and answers; 0 keeps none there."
    )
    host_precision: Precision = setting("f32", Kind(choices=("f32", "f16")), "--cache-precision").help(
        "The precision of states in memory, in files and in a store; f16 takes half the space and is not exact."
    )
    disk: DiskConfig | None = optional_part(DiskConfig, "the folder of the files")
    store: StoreConfig | None = optional_part(StoreConfig, "the store of the shared states")
    max_mark_tokens: int = 1 << 22  # sum of the lengths of the ghost entries
    index_capacity: int | None = None  # host memory besides the copies; None: see `index_bytes`
    device_capacity: int = setting(128 << 20, SIZE, "--cache-device-bytes").help(  # used by who makes the pool
        "Device memory for states of prompts and answers, at most 64 states; 0 keeps none there."
    )
    fetch_capacity: int = 256 << 20  # copies read from slow tiers for requests in the queue

    def index_bytes(self, device_bytes: int) -> int:
        """Return the bound of tokens, records and logits in host memory, for a device tier of `device_bytes`."""
        if self.index_capacity is not None:
            return self.index_capacity
        disk = 0 if self.disk is None else self.disk.capacity
        store = 0 if self.store is None else self.store.index_bytes
        return (1 << 20) + (self.host_capacity + device_bytes) // 4 + disk // 64 + store

    def with_one_precision(self) -> CacheConfig:
        """Return the settings with `host_precision` for the files and for the shared store, too."""
        precision = self.host_precision
        disk = None if self.disk is None else replace(self.disk, precision=precision)
        store = None if self.store is None else replace(self.store, precision=precision)
        return replace(self, disk=disk, store=store)

    @property
    def keeps_nothing(self) -> bool:
        return self.device_capacity == 0 and self.host_capacity == 0 and self.disk is None and self.store is None
