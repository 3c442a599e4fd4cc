"""The settings of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from states.payload import Precision


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The disk tier. `folder` belongs to one process at a time."""

    folder: Path
    capacity: int = 2 << 30  # bytes
    precision: Precision = "f32"
    background_bytes: int = 256 << 20  # what may wait for the writing thread; 0 = write at once on the caller's thread


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Bounds of the tiers in bytes; 0 or None is a tier that keeps nothing."""

    host_capacity: int = 256 << 20
    host_precision: Precision = "f32"
    disk: DiskConfig | None = None
    max_mark_tokens: int = 1 << 22  # lengths of the known paths that have lost their states, in all
    device_capacity: int = 128 << 20  # for whoever makes the pool: it bounds the device tier
    fetch_capacity: int = 256 << 20  # what may be read from slow tiers for requests that still wait

    @property
    def keeps_nothing(self) -> bool:
        return self.device_capacity == 0 and self.host_capacity == 0 and self.disk is None
