"""The quickest tier: slabs of a pool on the device. The last logits of what it keeps wait on the host.

Called on the thread that owns the device.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.types import F32
from states.cache.checkpoint import Checkpoint, Tier
from states.cache.device import DevicePool
from states.cache.eviction import EvictionQueue
from states.payload import Payload


@dataclass(frozen=True, slots=True, eq=False)
class _Slab:
    handle: int
    logits: F32 | None  # [V]


class DeviceTier:
    """Copies on the device. The ledger counts slabs; `logits_bytes` is what they take on the host besides."""

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool
        self._slabs: dict[Checkpoint, _Slab] = {}
        self.copy_bytes = pool.slab_bytes
        self.ledger = EvictionQueue(Tier.DEVICE, pool.num_slabs * pool.slab_bytes)
        self.logits_bytes = 0

    def save(self, checkpoint: Checkpoint, slot: int, logits: F32 | None) -> None:
        """Copy the live state of `slot`. The ledger must have room for one more slab."""
        self._slabs[checkpoint] = _Slab(self._pool.save(slot), logits)
        self.ledger.add(checkpoint, self.copy_bytes)
        self.logits_bytes += 0 if logits is None else logits.nbytes

    def load(self, checkpoint: Checkpoint, slot: int) -> None:
        """Copy the slab into the live state of `slot`."""
        self._pool.load(self._slabs[checkpoint].handle, slot)

    def logits(self, checkpoint: Checkpoint) -> F32 | None:
        """The last logits that were kept with the slab."""
        return self._slabs[checkpoint].logits

    def read(self, checkpoint: Checkpoint) -> Payload:
        """A copy on the host."""
        slab = self._slabs[checkpoint]
        return Payload(self._pool.read(slab.handle), slab.logits)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Give the slab back."""
        slab = self._slabs.pop(checkpoint)
        self._pool.free(slab.handle)
        self.ledger.remove(checkpoint)
        self.logits_bytes -= 0 if slab.logits is None else slab.logits.nbytes
