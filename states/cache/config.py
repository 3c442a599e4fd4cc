"""The settings of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rnn_engine.checks import check_finite
from states.payload import Precision
from states.shared.config import StoreConfig


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
