"""The live states of a runner's slots on the device: their memory layout, and writing, reading and copying them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
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
_MAX_READS = 4  # that are on their way to the host at the same time


class SlotStates:
    """The live states of all slots, a buffer for each layer. Writes, reads and copies run in the order of the calls."""

    def __init__(
        self, buffers: Sequence[Buffer], layout: StateLayout, num_slots: int, device: Device, memory: Memory
    ) -> None:
        """Use `buffers` for the states: one for each layer, [slots, layout.stride] f32."""
        self._buffers = buffers
        self._layout = layout
        self._memory = memory
        self._recorder = Recorder(device)
        self._slot_bytes = 4 * layout.stride  # in each layer's buffer
        self._layers_at_once = memory.max_buffer_bytes // self._slot_bytes  # that a buffer for the host can hold
        parts = range(0, len(buffers), self._layers_at_once)
        self._staging_bytes = [len(buffers[first:][: self._layers_at_once]) * self._slot_bytes for first in parts]
        self._sides = [0] * num_slots
        self._pair = memory.create_buffer("slots to copy", 8)
        kernel = device.kernels.get("copy_state", {"THREADS": _COPY_THREADS, "STATE_STRIDE": layout.stride})
        num_groups = -(-layout.stride // (4 * _COPY_THREADS))
        groups = [device.kernels.bind(kernel.source, {"pair": self._pair, "state": state}) for state in buffers]
        self._copy = Plan(tuple(Dispatch("fork", kernel, group, num_groups) for group in groups))
        self._unused = [self._create_staging()]
        self._num_staging = 1
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

    def write(self, slot: int, state: State) -> None:
        packed = self._layout.pack(state)  # [L, stride]
        for buffer, layer in zip(self._buffers, packed, strict=True):
            self._memory.upload(buffer, slot * self._slot_bytes, layer)
        self._sides[slot] = 0

    def copy(self, source: int, target: int) -> None:
        self._memory.upload(self._pair, 0, np.array([source, target], np.uint32))
        self._recorder.submit(self._copy)
        self._sides[target] = self._sides[source]

    def start_read(self, slot: int) -> SlotRead:
        """Start to download the state of `slot` after all steps submitted so far; return the read in progress.

        Waits only if no staging buffer is free: at four reads under way, or earlier if the device has no room for more.
        Raises DeviceError if the device rejects it.
        """
        staging = self._take_staging()
        copies = []
        for layer, buffer in enumerate(self._buffers):
            target, place = divmod(layer, self._layers_at_once)
            part = slot * self._slot_bytes, staging[target], place * self._slot_bytes, self._slot_bytes
            copies.append(BufferCopy(buffer, *part))
        downloads: list[ReadBack] = []
        try:
            submission = self._recorder.submit(copies=copies)
            for buffer, num_bytes in zip(staging, self._staging_bytes, strict=True):
                downloads.append(self._recorder.download(buffer, num_bytes, submission))
        except DeviceError:
            for download in downloads:
                with suppress(DeviceError):
                    download.take()
            self._unused.append(staging)
            raise
        read = SlotRead(self._layout, self._sides[slot], downloads, lambda read: self._give_back(read, staging))
        self._reads.append(read)
        return read

    def close(self) -> None:
        """Abandon the downloads of states in progress. From now on, their `SlotRead.result` raises DeviceError."""
        while self._reads:
            self._reads.popleft().abandon()

    def _take_staging(self) -> list[Buffer]:
        if not self._unused and self._num_staging < _MAX_READS:
            try:
                self._unused.append(self._create_staging())
                self._num_staging += 1
            except DeviceMemoryError:
                pass  # reads share the existing ones
        while not self._unused:
            self._reads[0].finish()
        return self._unused.pop()

    def _give_back(self, read: SlotRead, staging: list[Buffer]) -> None:
        self._reads.remove(read)
        self._unused.append(staging)

    def _create_staging(self) -> list[Buffer]:
        create = self._memory.create_buffer
        return [create("state to read", num_bytes, mappable=True) for num_bytes in self._staging_bytes]


class SlotRead:
    """The download of one slot's state from the device, in progress or done; implements `PendingState`."""

    def __init__(
        self, layout: StateLayout, side: int, downloads: Sequence[ReadBack], on_finished: Callable[[SlotRead], None]
    ) -> None:
        self._layout = layout
        self._side = side
        self._downloads = downloads  # of some layers each; empty once they are done
        self._on_finished = on_finished
        self._packed: F32 | DeviceError | None = None  # [L, stride]

    def done(self) -> bool:
        if all(download.is_ready for download in self._downloads):
            self.finish()
        return not self._downloads

    def result(self) -> dict[str, F32]:
        self.finish()
        if isinstance(self._packed, DeviceError):
            raise self._packed
        assert self._packed is not None
        return self._layout.unpack(self._packed, self._side)

    def finish(self) -> None:
        """Wait for the download of the state, store it on the host, and free the staging buffer."""
        if not self._downloads:
            return
        downloads, self._downloads = self._downloads, ()
        parts: list[bytes] = []
        failed: DeviceError | None = None
        for download in downloads:
            try:
                parts.append(download.take())
            except DeviceError as error:
                failed = error
        self._packed = failed or np.frombuffer(b"".join(parts), np.float32).reshape(-1, self._layout.stride)
        self._on_finished(self)

    def abandon(self) -> None:
        """Drop the download of the state. `result` raises DeviceError from now on."""
        self._downloads = ()
        self._packed = DeviceError("a state was not read before the runner was closed")
