"""The two quick tiers of the state cache: slabs of a pool on the device, and host memory, which has all logits."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from rnn_engine.types import F32, ModelShape
from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.cache.eviction import EvictionQueue
from rnn_engine_states.cache.tiers.tier import DevicePayload, MakeRoom, SlotPool, Tier, ready
from rnn_engine_states.frozen import Payload, Precision


@dataclass(frozen=True, slots=True, eq=False)
class _Slab:
    handle: int
    logits: F32 | None  # [V]


class DeviceTier(Tier):
    """The cache's tier on the device. It copies states from and to live slots: it has `save` and `load`, not `put`.

    It stores each copy in a slab, a preallocated place for one state. The queue counts the bytes of the copies; their
    logits in host memory are bounded too.
    """

    name = "device"

    def __init__(self, pool: SlotPool, max_logits_bytes: int) -> None:
        """Use the slabs of `pool`; once logits take `max_logits_bytes`, copies are evicted before new ones."""
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
        """Store the live state of `slot` as the copy of `checkpoint`. The queue must have room for `copy_bytes`."""
        self._slabs[checkpoint] = _Slab(self._pool.save(slot), logits)
        self.queue.add(checkpoint, self._pool.slab_bytes)
        self.logits_bytes += 0 if logits is None else logits.nbytes

    def load(self, checkpoint: Checkpoint, slot: int) -> None:
        """Load the copy of `checkpoint` into `slot` as its live state."""
        self._pool.load(self._slabs[checkpoint].handle, slot)

    def use_pool(self, pool: SlotPool) -> None:
        """Store copies of states in the slabs of `pool` from now on. The tier must be empty."""
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
        """Give all slabs of the tier back to the pool."""
        for checkpoint in list(self._slabs):
            self.drop(checkpoint)


class HostTier(Tier):
    """The cache's tier in host memory. It stores copies of states as numpy arrays in f32 or f16."""

    name = "host"

    def __init__(self, shape: ModelShape, capacity: int, precision: Precision) -> None:
        self.queue = EvictionQueue(self.name, capacity)
        self._precision: Precision = precision
        self._state_bytes = shape.state_bytes // (2 if precision == "f16" else 1)
        self._logits_bytes = 4 * shape.row_size
        self._payloads: dict[Checkpoint, Payload] = {}

    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        return self._state_bytes + (self._logits_bytes if checkpoint.has_logits else 0)

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:  # noqa: ARG002
        stored = payload.stored_as(self._precision)
        if not make_room(stored.num_bytes):
            return False
        self.queue.add(checkpoint, stored.num_bytes)
        self._payloads[checkpoint] = stored
        return True

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        return self._payloads[checkpoint]

    def start_read(self, checkpoint: Checkpoint) -> Future[Payload]:
        return ready(self._payloads[checkpoint])

    def drop(self, checkpoint: Checkpoint) -> None:
        del self._payloads[checkpoint]
        self.queue.remove(checkpoint)

    def close(self) -> None:
        """Do nothing: the garbage collector frees the copies together with the tier."""
