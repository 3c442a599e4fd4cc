"""A runner that works as another one does, except for the faults that a test arms.

The faults: refused and failed steps, rows that are not numbers, failed reads, writes and copies of states, and a device
that is lost, slow, or hangs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from rnn_engine.errors import DeviceError, StepError
from rnn_engine.types import (
    F32,
    NOTHING_DRAWN,
    Batch,
    LoraPairs,
    LoraRoom,
    ModelShape,
    PendingState,
    Readout,
    Runner,
    State,
    Ticket,
)

HANG_SECONDS = 30.0  # after which a hanging device that is not released fails its step


class Fault(StrEnum):
    """A fault of one kind of call."""

    SUBMIT = "submit"  # a step is refused
    COLLECT = "collect"  # a step fails, and leaves its states undefined
    UNSOUND = "unsound"  # a step's rows are not numbers, nor are the states of their runs
    LOST = "lost"  # when a step is submitted the device is lost, with all that is in flight
    LOST_LATE = "lost_late"  # the same when a step is collected
    WRITE = "write"  # a state is not written to its slot
    COPY = "copy"  # a state is not copied from slot to slot
    START_READ = "start_read"  # a state can't be read
    READ = "read"  # a read of a state begins and fails
    SLOW = "slow"  # a step takes long, see `Faults.on_slow`
    HANG = "hang"  # a step does not end until `Faults.release`


@dataclass
class Faults:
    """The armed faults, for a runner and for those that are opened after it."""

    on_slow: Callable[[], None] = lambda: None
    on_lost: Callable[[Runner], None] | None = None  # makes the wrapped runner fail by itself; None = it is left alone
    struck: Counter[Fault] = field(default_factory=Counter)
    steps: int = 0  # that were submitted
    hanging: threading.Event = field(default_factory=threading.Event)  # a step hangs

    def __post_init__(self) -> None:
        self._armed: dict[Fault, tuple[int, int]] = {}  # calls before it strikes, calls that it strikes
        self._released = threading.Event()

    def arm(self, fault: Fault, after: int = 0, times: int = 1) -> None:
        """Make `fault` strike `times` calls in a row, after sparing the first `after` calls that it could strike."""
        self._armed[fault] = after, times

    def disarm(self) -> None:
        """Disarm all faults."""
        self._armed.clear()

    def release(self) -> None:
        """Let hanging steps end."""
        self._released.set()

    def strikes(self, fault: Fault) -> bool:
        """Return True if `fault` strikes this call. For runners."""
        after, times = self._armed.get(fault, (0, 0))
        if after > 0:
            self._armed[fault] = after - 1, times
        if after > 0 or times == 0:
            return False
        self._armed[fault] = 0, times - 1
        self.struck[fault] += 1
        return True

    def hang(self) -> None:
        """Wait for `release`; for runners."""
        self.hanging.set()
        self._released.wait(HANG_SECONDS)


class FaultRunner:
    """A `Runner` around another one, which it owns."""

    def __init__(self, inner: Runner, faults: Faults) -> None:
        self.inner = inner
        self._faults = faults
        self._lost = False
        self._batches: dict[Ticket, Batch] = {}
        self._holding: dict[Ticket, set[int]] = {}  # slots of a step that were not written since
        self._failing: set[Ticket] = set()
        self._unsound: set[Ticket] = set()

    @property
    def shape(self) -> ModelShape:
        return self.inner.shape

    @property
    def num_slots(self) -> int:
        return self.inner.num_slots

    @property
    def max_tokens(self) -> int:
        return self.inner.max_tokens

    @property
    def max_rows(self) -> int:
        return self.inner.max_rows

    @property
    def max_draws(self) -> int:
        return self.inner.max_draws

    @property
    def max_draw_logprobs(self) -> int:
        return self.inner.max_draw_logprobs

    @property
    def num_penalty_slots(self) -> int:
        return self.inner.num_penalty_slots

    @property
    def steps_at_once(self) -> int:
        return self.inner.steps_at_once

    @property
    def lora_room(self) -> LoraRoom:
        return self.inner.lora_room

    def write_lora(self, place: int, lora: LoraPairs) -> None:
        self._fail_if(Fault.WRITE)
        self.inner.write_lora(place, lora)

    def submit(self, batch: Batch) -> Ticket:
        faults = self._faults
        faults.steps += 1
        if faults.strikes(Fault.LOST):
            self._lose()
        self._check_lost()
        if faults.strikes(Fault.SUBMIT):
            raise StepError("told to refuse a step")
        ticket = self.inner.submit(batch)
        self._batches[ticket] = batch
        self._holding[ticket] = {run.slot for run in batch}
        if faults.strikes(Fault.COLLECT):
            self._failing.add(ticket)
        if faults.strikes(Fault.UNSOUND):
            self._unsound.add(ticket)
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        faults = self._faults
        if faults.strikes(Fault.SLOW):
            faults.on_slow()
        if faults.strikes(Fault.HANG):
            faults.hang()
        if faults.strikes(Fault.LOST_LATE):
            self._lose()
        self._check_lost()
        readout = self.inner.collect(ticket)
        batch, slots = self._batches.pop(ticket), self._holding.pop(ticket)
        if ticket in self._failing:
            self._spoil(slots)
            raise StepError("told to fail a step")
        if ticket in self._unsound:
            self._spoil(slots & {run.slot for run in batch if run.rows > 0})
            nothing, sound = np.full_like(readout.logits, np.nan), np.array([run.rows == 0 for run in batch])
            return replace(readout, logits=nothing, sound=sound, drawn=[NOTHING_DRAWN] * len(readout.drawn))
        return readout

    def write_state(self, slot: int, state: State | None) -> None:
        self._fail_if(Fault.WRITE)
        self._replace_state(slot)
        self.inner.write_state(slot, state)

    def start_read(self, slot: int) -> PendingState:
        self._fail_if(Fault.START_READ)
        return _Read(self, self.inner.start_read(slot), fails=self._faults.strikes(Fault.READ))

    def read_state(self, slot: int) -> dict[str, F32]:
        return self.start_read(slot).result()

    def copy_state(self, source: int, target: int) -> None:
        self._fail_if(Fault.COPY)
        self._replace_state(target)
        self.inner.copy_state(source, target)

    def together(self) -> AbstractContextManager[None]:
        return self.inner.together()

    def close(self) -> None:
        self._lost = True
        self.inner.close()

    def _check_lost(self) -> None:
        if self._lost and self._faults.on_lost is None:
            raise DeviceError("told to lose the device")

    def _fail_if(self, fault: Fault) -> None:
        self._check_lost()
        if self._faults.strikes(fault):
            raise DeviceError(f"told to fail: {fault}")

    def _lose(self) -> None:
        self._lost = True
        if self._faults.on_lost is not None:
            self._faults.on_lost(self.inner)

    def _replace_state(self, slot: int) -> None:
        for slots in self._holding.values():
            slots.discard(slot)

    def _spoil(self, slots: Collection[int]) -> None:
        """Write wrong states into the slots of a failed step."""
        for slot in slots:
            self.inner.write_state(slot, None)


class _Read:
    """A `PendingState` of a `FaultRunner`."""

    def __init__(self, runner: FaultRunner, pending: PendingState, *, fails: bool) -> None:
        self._runner = runner
        self._pending = pending
        self._fails = fails

    def done(self) -> bool:
        return self._pending.done()

    def result(self) -> dict[str, F32]:
        self._runner._check_lost()
        if self._fails:
            raise DeviceError("told to fail a read")
        return self._pending.result()
