"""The tiers of the state cache: `Tier`, which stores copies of states, those in memory, and the base of slow ones."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

import numpy as np

from rnn_engine.errors import RnnEngineError
from rnn_engine.types import F32, ModelShape, PendingState, Runner, State
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind
from rnn_engine_states.cache.config import DiskConfig
from rnn_engine_states.cache.eviction import EvictionQueue
from rnn_engine_states.files.full import Origin, SavedState, file_bytes, full_state_file
from rnn_engine_states.frozen import Payload, Precision
from rnn_engine_states.shared.config import StoreConfig

_log = logging.getLogger(__name__)

# The cache's access to the slots with live states and to the pool of checkpoint slabs on the device.
#
# All methods are called on the thread that owns the runner.


class LiveStates(Protocol):
    """Access to the live states of the device's slots. Every `Runner` has these two methods."""

    def start_read(self, slot: int) -> PendingState:
        """Start to copy the state of `slot` to the host. The slot may be used again right after the call."""

    def write_state(self, slot: int, state: State | None) -> None:
        """Write `state` into `slot`. None stands for the state of a sequence before its first token."""


class SlotPool:
    """A pool of slabs, places on the device with room for one state each: spare slots of a runner."""

    def __init__(self, runner: Runner, first_slot: int, num_slabs: int) -> None:
        """Use `num_slabs` slots from `first_slot` on, in which no sequence may run."""
        self.num_slabs = num_slabs
        self.slab_bytes = runner.shape.state_bytes
        self._runner = runner
        self._unused = list(range(first_slot, first_slot + num_slabs))

    def save(self, slot: int) -> int:
        """Copy the state of `slot` into an unused slab, of which there is one, and return its handle."""
        handle = self._unused[-1]
        self._runner.copy_state(slot, handle)
        return self._unused.pop()

    def load(self, handle: int, slot: int) -> None:
        """Copy the state in the slab `handle` into `slot` as its live state."""
        self._runner.copy_state(handle, slot)

    def start_read(self, handle: int) -> PendingState:
        """Start to copy the state in the slab `handle` to the host. The slab may be freed right after the call."""
        return self._runner.start_read(handle)

    def free(self, handle: int) -> None:
        """Give the slab `handle` back to the pool. A later `save` may use the same slab."""
        self._unused.append(handle)


class Access(Enum):
    """How soon a sequence can start from a checkpoint: at once, after a read from a slow tier, or after a transfer."""

    AT_HAND = "at_hand"  # a sequence can go on from it now
    SLOW = "slow"  # it must be fetched first
    MOVING = "moving"  # it is on its way from one slow tier to another


@dataclass(frozen=True, slots=True)
class CopySource:
    """The source of a new copy of a state: a live slot, or another copy, which is read only if needed."""

    start_read: Callable[[], PendingPayload]
    logits: F32 | None = None  # [V] if they are known before the copy has arrived
    slot: int | None = None
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A running transfer of a checkpoint's copy to a tier, whose eviction queue already counts the copy's bytes."""

    tier: Tier
    source: CopySource
    pending: PendingPayload


MakeRoom: TypeAlias = Callable[[int], bool]
"""Make room for this many bytes in a tier's queue; return True if there is room now."""


class PendingPayload(Protocol):
    """The interface of a copy of a state that is being read to the host, in the manner of a `Future`."""

    def done(self) -> bool:
        """Return True if the read has ended or failed, so that `result` does not wait."""

    def result(self) -> Payload:
        """Wait for the copy of the state and return it, or raise the exception that ended the read. Called once."""


def ready(payload: Payload) -> Future[Payload]:
    """Return a copy of a state that is already on the host as one that was read."""
    future: Future[Payload] = Future()
    future.set_result(payload)
    return future


@dataclass(frozen=True, slots=True)
class DevicePayload:
    """A `PendingPayload` for a state that is being read from the device. Its logits are already on the host."""

    state: PendingState
    logits: F32 | None  # [V]

    def done(self) -> bool:
        return self.state.done()

    def result(self) -> Payload:
        return Payload(self.state.result(), self.logits)


@dataclass(frozen=True, slots=True)
class FoundCopy:
    """The description of a copy in a tier that another process has written: an earlier process, or another server."""

    key: str  # the tier's own name for it
    root: str
    tokens: bytes  # packed
    kind: CheckpointKind
    has_logits: bool
    num_bytes: int


class Tier(ABC):
    """Base class of the state cache's tiers. A tier stores copies of states; its eviction queue bounds their bytes.

    All methods are called on the cache's thread and return at once; slow operations run on the tier's own threads. The
    copies of a `slow` tier outlive the process, and must be read before a sequence can continue from them. The copies
    of a `shared` tier are used by other servers too: `drop` only forgets them here.
    """

    name: str
    queue: EvictionQueue
    slow: bool = False
    shared: bool = False
    write_after: float = 0.0  # seconds after which a slow tier gets a copy of a checkpoint of a quicker one
    writes_refused: int = 0  # copies that were not made because the tier was too busy
    failed_writes: int = 0  # copies that could not be written
    logits_bytes: int = 0  # host memory for logits, which its queue does not count

    @property
    def is_crowded(self) -> bool:
        """Whether the tier must evict a copy before a new one is added, even if the queue has room."""
        return False

    @property
    def is_ready(self) -> bool:
        """Whether the tier can be expected to accept a copy now."""
        return True

    @property
    def is_busy(self) -> bool:
        """Whether the tier is still writing copies that `put` has accepted. May be read on any thread."""
        return False

    def wants(self, checkpoint: Checkpoint) -> bool:
        """Return True if the tier should get a copy of `checkpoint`. Slow tiers do not get waypoints."""
        return not (self.slow and checkpoint.is_waypoint)

    @abstractmethod
    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        """Return how many bytes a copy of `checkpoint` is expected to take."""

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:
        """Store `payload` as the tier's copy of `checkpoint`. Return False if there is no room or the tier is too busy.

        Calls `make_room` with the exact size of the copy. With `wait`, waits while the tier is too busy. The copy can
        be read and dropped from now on, even before it is written.
        """
        raise NotImplementedError

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of `checkpoint` if it is in host memory, or None if it must be read."""
        raise NotImplementedError

    def logits(self, checkpoint: Checkpoint) -> F32 | None:
        """Return the last logits of a copy that is in host memory or on the device, or None if it has none."""
        payload = self.get(checkpoint)
        return None if payload is None else payload.logits

    @abstractmethod
    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        """Start to read the tier's copy of `checkpoint`. The copy may be dropped right after the call."""

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Start to read a copy of a state from a slow tier. The future raises an exception if the copy is damaged.

        Only for a copy that is not in memory. The copy stays until the future is done or cancelled.
        """
        raise NotImplementedError

    @abstractmethod
    def drop(self, checkpoint: Checkpoint) -> None:
        """Remove the copy of `checkpoint` from the tier and from its queue."""

    def take_failed(self) -> Sequence[Checkpoint]:
        """Return the checkpoints, for the caller to drop, that could not be written since the last call."""
        return ()

    def find_copies(self) -> Sequence[FoundCopy]:
        """Return earlier processes' copies, least recently used first; once, before any `put`."""
        return ()

    def adopt(self, checkpoint: Checkpoint, found: FoundCopy) -> None:
        """Register a copy of another process as that of `checkpoint`; the queue must have room."""
        raise NotImplementedError

    def discard(self, found: FoundCopy) -> None:
        """Delete a copy of a state that an earlier process left in the tier."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Wait for copies being written, and free the tier. No method may be called afterwards."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """A copy of a state that is being written, and the future of that write."""

    payload: Payload
    future: Future[None]


class SlowTier(Tier):
    """Base class of tiers on disk or in a store, whose copies are full-state files and outlive the process.

    Other threads write and read a copy. Until it is written, it is served from its arrays.
    """

    slow = True

    def __init__(
        self, config: DiskConfig | StoreConfig, model: str, shape: ModelShape, *, capacity: int, patience: float | None
    ) -> None:
        """Store at most `capacity` bytes of copies.

        `model` is the fingerprint of all settings that must be equal for a state to be continued. `config` bounds the
        bytes that wait to be written. One copy is always accepted, even if it has more. `put` waits at most `patience`
        seconds for others; None means as long as it takes.
        """
        self.queue = EvictionQueue(self.name, capacity)
        self.write_after = config.write_after
        self._model = model
        self._shape = shape
        self._precision = config.precision
        self._background_bytes = config.background_bytes
        self._patience = patience
        self._writes: dict[Checkpoint, _Write] = {}  # those that are not known to have succeeded
        self._waiting: dict[Future[None], int] = {}  # the bytes of each write, including those of forgotten copies
        # Stand-ins for a state's arrays and logits: they have the right shapes and take no memory.
        dtype, initial = np.float16 if config.precision == "f16" else np.float32, shape.initial_state()
        self._arrays = {name: np.broadcast_to(dtype(0), array.shape) for name, array in initial.items()}
        self._logits: F32 = np.broadcast_to(np.float32(0), (shape.row_size,))

    @abstractmethod
    def _start_write(self, checkpoint: Checkpoint, saved: SavedState) -> Future[None]:
        """Start to write a checkpoint's file on another thread."""

    @property
    def is_busy(self) -> bool:
        return bool(self._writes)

    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        logits = self._logits if checkpoint.has_logits else None
        return self._num_bytes(self._saved(checkpoint, Payload(self._arrays, logits)))

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:
        if not self.wants(checkpoint):
            return False
        saved = self._saved(checkpoint, payload.stored_as(self._precision))
        num_bytes = self._num_bytes(saved)
        if not make_room(num_bytes):
            return False
        if not self.is_ready or not self._has_room(num_bytes, self._patience if wait else 0.0):
            self.writes_refused += 1
            return False
        future = self._start_write(checkpoint, saved)
        if self._background_bytes == 0:
            wait_for([future])
        future.add_done_callback(self._count_failure)
        self._waiting[future] = num_bytes
        if not (future.done() and future.exception() is None):
            self._writes[checkpoint] = _Write(saved.payload, future)
        self._enter(checkpoint, num_bytes)
        return True

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of `checkpoint` if it is still being written. Return None if it must be read."""
        write = self._writes.get(checkpoint)
        return None if write is None else write.payload

    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        waiting = self.get(checkpoint)
        return self.start_fetch(checkpoint) if waiting is None else ready(waiting)

    def take_failed(self) -> Sequence[Checkpoint]:
        ended = [checkpoint for checkpoint, write in self._writes.items() if write.future.done()]
        return [checkpoint for checkpoint in ended if self._writes.pop(checkpoint).future.exception() is not None]

    def adopt(self, checkpoint: Checkpoint, found: FoundCopy) -> None:
        self._enter(checkpoint, found.num_bytes)

    def close(self) -> None:
        """Forget the writes, whose futures refer to the tier. A subclass first waits for them."""
        self._writes.clear()
        self._waiting.clear()

    def _saved(self, checkpoint: Checkpoint, payload: Payload) -> SavedState:
        origin = Origin(self._model, checkpoint.root, checkpoint.length, checkpoint.kind.value)
        return SavedState(origin, checkpoint.known_place().tokens(), payload)

    def _num_bytes(self, saved: SavedState) -> int:
        return file_bytes(*full_state_file(saved, self._shape.version, checksums=False))

    def _enter(self, checkpoint: Checkpoint, num_bytes: int) -> None:
        self.queue.add(checkpoint, num_bytes)

    def _count_failure(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.failed_writes += 1
            if not isinstance(error, OSError | RnnEngineError):
                _log.error("a checkpoint could not be written", exc_info=error)

    def _has_room(self, num_bytes: int, patience: float | None) -> bool:
        """Return True if `num_bytes` more bytes may wait to be written, now or within `patience` seconds."""
        until = None if patience is None else time.monotonic() + patience
        while True:
            self._waiting = {future: size for future, size in self._waiting.items() if not future.done()}
            waiting = sum(self._waiting.values())
            if waiting == 0 or waiting + num_bytes <= self._background_bytes:
                return True
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            wait_for(self._waiting, left, FIRST_COMPLETED)
