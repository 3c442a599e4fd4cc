"""The quickest tier: slabs of a pool on the device. The last logits of what it keeps wait on the host."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.types import F32
from states.cache.checkpoint import Checkpoint
from states.cache.device import DevicePool
from states.cache.eviction import EvictionQueue
from states.cache.tiers.tier import DevicePayload, Tier


@dataclass(frozen=True, slots=True, eq=False)
class _Slab:
    handle: int
    logits: F32 | None  # [V]


class DeviceTier(Tier):
    """Copies on the device. The queue counts slabs; their logits have a bound of their own."""

    name = "device"
    on_device = True

    def __init__(self, pool: DevicePool, max_logits_bytes: int) -> None:
        """No more is kept when the logits take `max_logits_bytes`, until others have given way."""
        self._pool = pool
        self._slabs: dict[Checkpoint, _Slab] = {}
        self.queue = EvictionQueue(self.name, pool.num_slabs * pool.slab_bytes)
        self.logits_bytes = 0
        self._max_logits_bytes = max_logits_bytes

    @property
    def is_crowded(self) -> bool:
        return self.logits_bytes > 0 and self.logits_bytes >= self._max_logits_bytes

    def copy_bytes(self, checkpoint: Checkpoint) -> int:  # noqa: ARG002
        return self._pool.slab_bytes

    def save(self, checkpoint: Checkpoint, slot: int, logits: F32 | None) -> None:
        self._slabs[checkpoint] = _Slab(self._pool.save(slot), logits)
        self.queue.add(checkpoint, self._pool.slab_bytes)
        self.logits_bytes += 0 if logits is None else logits.nbytes

    def load(self, checkpoint: Checkpoint, slot: int) -> None:
        self._pool.load(self._slabs[checkpoint].handle, slot)

    def use_pool(self, pool: DevicePool) -> None:
        self._pool = pool
        self.queue.capacity = pool.num_slabs * pool.slab_bytes

    def logits(self, checkpoint: Checkpoint) -> F32 | None:
        return self._slabs[checkpoint].logits

    def start_read(self, checkpoint: Checkpoint) -> DevicePayload:
        slab = self._slabs[checkpoint]
        return DevicePayload(self._pool.start_read(slab.handle), slab.logits)

    def drop(self, checkpoint: Checkpoint) -> None:
        slab = self._slabs.pop(checkpoint)
        self._pool.free(slab.handle)
        self.queue.remove(checkpoint)
        self.logits_bytes -= 0 if slab.logits is None else slab.logits.nbytes

    def close(self) -> None:
        """Give all slabs back."""
        for checkpoint in list(self._slabs):
            self.drop(checkpoint)
