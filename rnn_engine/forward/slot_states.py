"""The live states of a runner's slots on the device: their memory layout, and writing, reading and copying them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import prod
from typing import Final

import numpy as np

from rnn_engine.errors import DeviceError, DeviceMemoryError
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer, BufferCopy, Device, Dispatch, Memory, Plan, ReadBack, Recorder
from rnn_engine.types import F32, FieldKind, ModelShape, State, StateField

_KEYS_AT_ONCE: Final = 8  # the keys that a kernel of a recurrence loads at once


class StateLayout:
    """The layout in memory of one slot's state within the device buffer of one layer.

    The fields lie one after another, each from a multiple of 4 floats on.

    A shift is stored twice, as sides 0 and 1: a step reads the side that its run names and writes the other one.
    A matrix [H, value, key] is stored as [H, key / 4, value, 4], with the keys padded with zeros to a multiple of 8.
    """

    def __init__(self, shape: ModelShape) -> None:
        self._num_layers = shape.num_layers
        self._fields = shape.state_fields
        self.offsets: dict[str, int] = {}  # field name -> its first float
        self.stride = 0  # floats of a slot
        for field in self._fields:
            self.offsets[field.name] = self.stride
            self.stride += round_up(_stored_size(field), 4)

    def pack(self, state: State) -> F32:
        """Return `state` as an array [L, stride] in the device's memory layout, with token shifts in side 0 of two."""
        packed = np.zeros((self._num_layers, self.stride), np.float32)
        for field in self._fields:
            values = state[field.name]
            if field.kind is FieldKind.MATRIX:
                heads, rows, columns = field.shape
                padding = round_up(columns, _KEYS_AT_ONCE) - columns
                values = np.pad(values, ((0, 0), (0, 0), (0, 0), (0, padding)))
                values = values.reshape(-1, heads, rows, (columns + padding) // 4, 4).swapaxes(2, 3)
            values = values.reshape(self._num_layers, -1)
            start = self.offsets[field.name]
            packed[:, start : start + values.shape[1]] = values
        return packed

    def unpack(self, packed: F32, side: int) -> dict[str, F32]:
        """Return the fields of `packed` [L, stride], with the copy `side`, 0 or 1, of the token shifts."""
        return {field.name: self._unpack_field(packed, field, side) for field in self._fields}

    def _unpack_field(self, packed: F32, field: StateField, side: int) -> F32:
        if field.kind is FieldKind.MATRIX:
            heads, rows, columns = field.shape
            start = self.offsets[field.name]
            values = packed[:, start : start + _stored_size(field)]
            values = values.reshape(-1, heads, round_up(columns, _KEYS_AT_ONCE) // 4, rows, 4).swapaxes(2, 3)
            values = values.reshape(-1, heads, rows, round_up(columns, _KEYS_AT_ONCE))[..., :columns]
        else:
            size = prod(field.shape)
            start = self.offsets[field.name] + (side * size if field.kind is FieldKind.SHIFT else 0)
            values = packed[:, start : start + size]
        return np.array(values, order="C").reshape(-1, *field.shape)


def _stored_size(field: StateField) -> int:
    """Return the number of floats that a state field takes in a layer's device buffer."""
    match field.kind:
        case FieldKind.SHIFT:
            return 2 * prod(field.shape)
        case FieldKind.MATRIX:
            heads, rows, columns = field.shape
            return heads * rows * round_up(columns, _KEYS_AT_ONCE)
        case FieldKind.VECTOR:
            return prod(field.shape)


_COPY_THREADS = 64
_INITIAL: Final = 2**32 - 1  # the source of a slot that gets the initial state
_LEAST_READS: Final = 4  # that may be on their way to the host at the same time
_READ_BYTES: Final = 16 << 20  # more reads, as long as they take no more host memory than this


class SlotStates:
    """The live states of all slots, a buffer for each layer. Writes, reads and copies run in the order of the calls.

    Reads and copies within `together` wait for its end, or for a call that would change what they find. The device then
    makes all reads before all copies, and no slot that waits to be written is read.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        layout: StateLayout,
        initial: State,
        num_slots: int,
        device: Device,
        memory: Memory,
    ) -> None:
        """Use `buffers` for the states: one for each layer, [slots, layout.stride] f32.

        `initial` is the state before the first token, the same in all layers.
        """
        self._buffers = buffers
        self.layout = layout
        self._memory = memory
        self._recorder = Recorder(device)
        self._slot_bytes = 4 * layout.stride  # in each layer's buffer
        self._layers_at_once = memory.max_buffer_bytes // self._slot_bytes  # that a buffer for the host can hold
        parts = range(0, len(buffers), self._layers_at_once)
        self._staging_bytes = [len(buffers[first:][: self._layers_at_once]) * self._slot_bytes for first in parts]
        self._sides = [0] * num_slots
        self._to_copy = memory.create_buffer("slots to copy", 8 * num_slots)
        first = memory.create_buffer("initial state", self._slot_bytes)
        memory.upload(first, 0, layout.pack(initial)[0])
        kernel = device.kernels.get("copy_state", {"THREADS": _COPY_THREADS, "STATE_STRIDE": layout.stride})
        own = {"pairs": self._to_copy, "initial": first}
        groups = [device.kernels.bind(kernel.source, {**own, "state": state}) for state in buffers]
        num_groups = -(-layout.stride // (4 * _COPY_THREADS))
        self._copy = lru_cache(None)(
            lambda count: Plan(tuple(Dispatch("fork", kernel, group, num_groups, count) for group in groups))
        )
        self._pairs: dict[int, int] = {}  # target slot -> source slot, of the copies that wait
        self._is_held = False
        self._unused = [self._create_staging()]
        self._num_staging = 1
        self._most_staging = max(_LEAST_READS, _READ_BYTES // sum(self._staging_bytes))
        self._reads: deque[SlotRead] = deque()  # the reads that hold a staging buffer, oldest first

    @property
    def sides(self) -> Sequence[int]:
        """For each slot, the copy of the token shifts, 0 or 1, that the next step reads; it writes the other one.

        A run that draws counts as if it had drawn all its tokens, until the device reports how many it has drawn.
        """
        return self._sides

    def advance(self, slot: int, times: int = 1) -> None:
        """Record that `times` forward passes in `slot` were submitted; each swaps the copies of its token shifts."""
        self._sides[slot] ^= times & 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """See `Runner.together`. A submission that fails is tried again before the next step, which fails with it."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            with suppress(DeviceError):
                self.submit()

    def write(self, slot: int, state: State | None) -> None:
        """Write a state, or None for the initial one."""
        if state is None:
            self._wait_to_copy(_INITIAL, slot, 0)
            return
        self.submit()
        packed = self.layout.pack(state)  # [L, stride]
        for buffer, layer in zip(self._buffers, packed, strict=True):
            self._memory.upload(buffer, slot * self._slot_bytes, layer)
        self._sides[slot] = 0

    def copy(self, source: int, target: int) -> None:
        self._wait_to_copy(self._pairs.get(source, source), target, self._sides[source])

    def start_read(self, slot: int) -> SlotRead:
        """Start to download the state of `slot` after all steps submitted so far; return the read in progress.

        Waits only if no staging buffer is free: at several reads under way, or earlier if the device has no room for
        more. Raises DeviceError if the device rejects it.
        """
        if self._pairs.get(slot) == _INITIAL:
            self.submit()
        staging = self._take_staging()  # which may submit, too
        source = self._pairs.get(slot, slot)  # since the reads that wait come before the copies
        read = SlotRead(self, source, self._sides[slot], staging)
        self._reads.append(read)
        if not self._is_held:
            self.submit()
        return read

    def submit(self) -> None:
        """Have the device make the copies and reads that wait. Raises DeviceError; the copies then still wait."""
        if reads := [read for read in self._reads if not read.is_submitted]:
            try:
                submission = self._recorder.submit(copies=[copy for read in reads for copy in self._copies(read)])
                for read in reads:
                    read.begin(self._recorder, submission)
            except DeviceError as error:
                for read in reads:
                    read.end(error)
                raise
        if self._pairs:
            pairs = [(source, target) for target, source in self._pairs.items()]
            self._memory.upload(self._to_copy, 0, np.array(pairs, np.uint32))
            self._recorder.submit(self._copy(len(pairs)))
            self._pairs.clear()

    def close(self) -> None:
        """Abandon the downloads of states in progress. From now on, their `SlotRead.result` raises DeviceError."""
        self._pairs.clear()
        while self._reads:
            self._reads.popleft().abandon(DeviceError("a state was not read before the runner was closed"))

    def _wait_to_copy(self, source: int, target: int, side: int) -> None:
        if target in self._pairs.values():
            self.submit()
        self._pairs[target] = source
        self._sides[target] = side
        if not self._is_held:
            self.submit()

    def _copies(self, read: SlotRead) -> Iterator[BufferCopy]:
        start, num_bytes = read.slot * self._slot_bytes, self._slot_bytes
        for layer, buffer in enumerate(self._buffers):
            target, place = divmod(layer, self._layers_at_once)
            yield BufferCopy(buffer, start, read.staging[target], place * num_bytes, num_bytes)

    def _take_staging(self) -> list[Buffer]:
        if not self._unused and self._num_staging < self._most_staging:
            try:
                self._unused.append(self._create_staging())
                self._num_staging += 1
            except DeviceMemoryError:
                pass  # reads share the existing ones
        while not self._unused:
            self._reads[0].finish()
        return self._unused.pop()

    def give_back(self, read: SlotRead) -> None:
        """Take note that `read` needs its staging buffers no more."""
        self._reads.remove(read)
        self._unused.append(read.staging)

    def _create_staging(self) -> list[Buffer]:
        create = self._memory.create_buffer
        return [create("state to read", num_bytes, mappable=True) for num_bytes in self._staging_bytes]


class SlotRead:
    """The download of one slot's state from the device, in progress or done; implements `PendingState`."""

    def __init__(self, states: SlotStates, slot: int, side: int, staging: list[Buffer]) -> None:
        self.slot = slot
        self.staging = staging  # of some layers each
        self._states = states
        self._side = side
        self._downloads: list[ReadBack] = []  # one of each staging buffer, once the device was given the copies to them
        self._packed: F32 | DeviceError | None = None  # [L, stride]

    @property
    def is_submitted(self) -> bool:
        return len(self._downloads) > 0

    def begin(self, recorder: Recorder, submission: int) -> None:
        """Start the downloads. Raises DeviceError."""
        for buffer in self.staging:
            self._downloads.append(recorder.download(buffer, buffer.size, submission))

    def done(self) -> bool:
        if self._packed is None and self.is_submitted and all(download.is_ready for download in self._downloads):
            self.finish()
        return self._packed is not None

    def result(self) -> dict[str, F32]:
        self.finish()
        if isinstance(self._packed, DeviceError):
            raise self._packed
        assert self._packed is not None
        return self._states.layout.unpack(self._packed, self._side)

    def finish(self) -> None:
        """Have the state on the host, or an error in its place, and the staging buffers free."""
        if self._packed is None and not self.is_submitted:
            with suppress(DeviceError):  # which this read then has
                self._states.submit()
        if self._packed is None:
            self.end()

    def end(self, error: DeviceError | None = None) -> None:
        """Wait for the downloads that were begun, store the state or an error, and free the staging buffers."""
        parts: list[bytes] = []
        for download in self._downloads:
            try:
                parts.append(download.take())
            except DeviceError as failed:
                error = failed
        self._packed = error or np.frombuffer(b"".join(parts), np.float32).reshape(-1, self._states.layout.stride)
        self._states.give_back(self)

    def abandon(self, error: DeviceError) -> None:
        """Drop the download of the state. `result` raises `error` from now on."""
        self._packed = error
