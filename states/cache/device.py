"""How the cache reaches live states and the pool of checkpoint slabs on the device.

Every method is called on the one thread that owns the runner. `SlotPool` is the pool for a runner that has slots to
spare.
"""

from __future__ import annotations

from typing import Protocol

from rnn_engine.types import PendingState, Runner, State


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
