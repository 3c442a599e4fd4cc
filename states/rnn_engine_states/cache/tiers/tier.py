"""The interfaces below the state cache: `Tier`, which stores copies of states, and the device's slots and slabs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from rnn_engine.types import F32, PendingState, Runner, State
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind
from rnn_engine_states.cache.eviction import EvictionQueue
from rnn_engine_states.frozen import Payload

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
