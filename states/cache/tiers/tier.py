"""What the cache asks of a tier, a place where copies of states are kept, and of the device's pool of slabs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from rnn_engine.types import F32, PendingState, Runner, State
from states.cache.checkpoint import Checkpoint, CheckpointKind
from states.cache.eviction import EvictionQueue
from states.frozen import Payload

# How the cache reaches live states and the pool of checkpoint slabs on the device.
#
# Every method is called on the one thread that owns the runner. `SlotPool` is the pool for a runner that has slots to
# spare.


class LiveStates(Protocol):
    """The slots in which sequences run. Every `Runner` has these two methods."""

    def start_read(self, slot: int) -> PendingState:
        """Start to copy the state that `slot` holds to the host; the slot may go on right after the call."""
        ...

    def write_state(self, slot: int, state: State | None) -> None:
        """Put `state` into `slot`; None is the state before the first token."""
        ...


class DevicePool(Protocol):
    """Slabs on the device, each with room for one state."""

    @property
    def num_slabs(self) -> int: ...

    @property
    def slab_bytes(self) -> int: ...

    def save(self, slot: int) -> int:
        """Copy the live state of `slot` into an unused slab and return its handle. The caller keeps to `num_slabs`."""
        ...

    def load(self, handle: int, slot: int) -> None:
        """Copy a slab into the live state of `slot`."""
        ...

    def start_read(self, handle: int) -> PendingState:
        """Start to copy a slab to the host; it may be freed right after the call."""
        ...

    def free(self, handle: int) -> None:
        """Give a slab back; its handle may come again from a later `save`."""
        ...


class SlotPool:
    """A pool made of the runner's slots from `first_slot` on, in which no sequence runs."""

    def __init__(self, runner: Runner, first_slot: int, num_slabs: int) -> None:
        self._runner = runner
        self._unused = list(range(first_slot, first_slot + num_slabs))
        self._num_slabs = num_slabs

    @property
    def num_slabs(self) -> int:
        return self._num_slabs

    @property
    def slab_bytes(self) -> int:
        return self._runner.shape.state_bytes

    def save(self, slot: int) -> int:
        handle = self._unused[-1]
        self._runner.copy_state(slot, handle)
        return self._unused.pop()

    def load(self, handle: int, slot: int) -> None:
        self._runner.copy_state(handle, slot)

    def start_read(self, handle: int) -> PendingState:
        return self._runner.start_read(handle)

    def free(self, handle: int) -> None:
        self._unused.append(handle)


class Access(Enum):
    """How a sequence gets at a checkpoint."""

    AT_HAND = "at_hand"  # it can go on from it now
    SLOW = "slow"  # it has to be fetched first
    MOVING = "moving"  # between two slow tiers


@dataclass(frozen=True, slots=True)
class CopySource:
    """Where a tier gets a copy from: a live slot, for tiers on the device, or a copy on the host, read when needed."""

    start_read: Callable[[], PendingPayload]
    logits: F32 | None = None  # [V] where they are known before the copy has arrived
    slot: int | None = None
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A copy on its way to a tier, whose queue counts it already."""

    tier: Tier
    source: CopySource
    pending: PendingPayload


MakeRoom: TypeAlias = Callable[[int], bool]
"""Make room for so many bytes in a tier's queue; whether there is room now."""


class PendingPayload(Protocol):
    """A copy that is on its way; a `Future` is one, too."""

    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        ...

    def result(self) -> Payload:
        """Wait for the copy. Raises what went wrong. Called once."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyPayload:
    """A copy that is there."""

    payload: Payload

    def done(self) -> bool:
        return True

    def result(self) -> Payload:
        return self.payload


@dataclass(frozen=True, slots=True)
class DevicePayload:
    """A state on its way from the device, with logits that are on the host."""

    state: PendingState
    logits: F32 | None  # [V]

    def done(self) -> bool:
        return self.state.done()

    def result(self) -> Payload:
        return Payload(self.state.result(), self.logits)


@dataclass(frozen=True, slots=True)
class FoundCopy:
    """A copy that an earlier process left in a tier."""

    key: str  # the tier's own name for it
    root: str
    tokens: bytes  # packed
    kind: CheckpointKind
    has_logits: bool
    num_bytes: int


class Tier(ABC):
    """A place where copies of states are kept, bounded in bytes by its queue. A new kind of place subclasses this.

    All methods are called on the cache's thread and return at once; what takes long happens on threads of the tier's
    own. A tier `on_device` copies from and to live slots: it has `save`, `load` and `use_pool` instead of `put` and
    `get`. The copies of a `slow` tier outlive the process, and have to be read before a sequence can go on from them.
    Those of a `shared` one are other servers' too: to drop one is to forget it here.
    """

    name: str
    queue: EvictionQueue
    on_device: bool = False
    slow: bool = False
    shared: bool = False
    write_after: float = 0.0  # seconds after which a slow tier gets a copy of what quicker ones have
    writes_refused: int = 0  # copies that were not made because the tier was too busy
    failed_writes: int = 0  # files that the disk did not take
    logits_bytes: int = 0  # host memory that the tier takes besides what its queue counts

    @property
    def is_crowded(self) -> bool:
        """Whether a copy has to give way for another although the queue has room."""
        return False

    @property
    def is_ready(self) -> bool:
        """Whether `put` is worth a try now."""
        return True

    @property
    def is_busy(self) -> bool:
        """Whether something that was put is on its way. May be asked on any thread."""
        return False

    def wants(self, checkpoint: Checkpoint) -> bool:
        """Whether a copy would be of use in the tier. Waypoints are not worth being written to a slow one."""
        return not (self.slow and checkpoint.is_waypoint)

    @abstractmethod
    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        """How many bytes a copy is expected to take, before it is there."""

    def save(self, checkpoint: Checkpoint, slot: int, logits: F32 | None) -> None:
        """Copy the live state of `slot`; the queue has room for `copy_bytes`."""
        raise NotImplementedError

    def load(self, checkpoint: Checkpoint, slot: int) -> None:
        """Copy into the live state of `slot`."""
        raise NotImplementedError

    def use_pool(self, pool: DevicePool) -> None:
        """Keep copies in another pool from now on; there are none."""
        raise NotImplementedError

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:
        """Keep a copy, whose exact size is asked of `make_room`. False without room, or where the tier is too busy.

        `wait` waits until it is not. Reading and dropping the copy work from now on, written out or not.
        """
        raise NotImplementedError

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        """The copy where it is in host memory; None where it has to be read."""
        raise NotImplementedError

    def logits(self, checkpoint: Checkpoint) -> F32 | None:
        """The last logits of a copy that need not be read."""
        payload = self.get(checkpoint)
        return None if payload is None else payload.logits

    @abstractmethod
    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        """Begin to read a copy, which may be dropped right after the call."""

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Begin to read a copy that `get` does not have. The result raises an exception where it is damaged.

        Only for slow tiers. The copy stays until the future is done or cancelled.
        """
        raise NotImplementedError

    @abstractmethod
    def drop(self, checkpoint: Checkpoint) -> None:
        """Forget a copy, and take it out of the queue."""

    def take_failed(self) -> Sequence[Checkpoint]:
        """The checkpoints whose copies could not be written since the last call; they are to be dropped."""
        return ()

    def find_copies(self) -> Sequence[FoundCopy]:
        """What earlier processes left, the longest unused first. Called once, before anything is put."""
        return ()

    def adopt(self, checkpoint: Checkpoint, found: FoundCopy) -> None:
        """Take over what an earlier process left as the copy of `checkpoint`; the queue has room for it."""
        raise NotImplementedError

    def discard(self, found: FoundCopy) -> None:
        """Delete what an earlier process left."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Free what the tier holds, once all that was put is written. Nothing may be called afterwards."""
