"""What a trainer on a device trains, in its buffers: an initial state, or low-rank pairs and vectors of the model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from rnn_engine.backward.contract import state_shapes
from rnn_engine.forward.matmul import LoadedPart
from rnn_engine.forward.pairs import Pairs
from rnn_engine.forward.segments import SegmentPlace
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, PANEL_ROWS, from_panels, round_up, to_panels
from rnn_engine.gpu import Buffer, Memory
from rnn_engine.types import F32, ModelShape, State

_BLOCK: Final = COLUMNS_AT_ONCE  # floats of a block of weights in f32


@dataclass(frozen=True, slots=True)
class TrainedBuffer:
    """The device buffers of numbers that are trained, [n] f32 each, in one layout. `values` may be longer."""

    label: str
    values: Buffer
    rate_factor: float  # times the learning rate
    gradient: Buffer
    first: Buffer  # Adam's running mean of the gradients
    second: Buffer  # the same of their squares

    @classmethod
    def create(
        cls, label: str, values: Buffer, memory: Memory, rate_factor: float = 1.0, num_floats: int | None = None
    ) -> TrainedBuffer:
        """Train the first `num_floats` of `values`, by default all of them."""
        num_bytes = int(values.size) if num_floats is None else 4 * num_floats
        names = ("gradient", "first moments", "second moments")
        buffers = (memory.create_buffer(f"{label} {name}", num_bytes, use="states") for name in names)
        return cls(label, values, rate_factor, *buffers)

    @property
    def num_floats(self) -> int:
        return int(self.gradient.size) // 4


class StateParameters:
    """The initial state from which all documents start."""

    def __init__(
        self,
        shape: ModelShape,
        layout: StateLayout,
        initial: Sequence[Buffer],
        trained: Sequence[str],
        rate_factor: float,
        memory: Memory,
    ) -> None:
        """Train the fields `trained` of the states in `initial`, a buffer for each layer."""
        self.shapes: Mapping[str, tuple[int, ...]] = state_shapes(shape)
        self.trained = trained
        self.buffers = [
            TrainedBuffer.create(f"layer {layer}", each, memory, rate_factor) for layer, each in enumerate(initial)
        ]
        self._layout = layout

    def pack(self, arrays: State) -> list[F32]:
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        return list(self._layout.pack({**zeros, **arrays}))

    def unpack(self, contents: Sequence[F32]) -> dict[str, F32]:
        return self._layout.unpack(np.stack(contents), 0)


class PairParameters:
    """The low-rank pairs beside matrices, whose halves are the weights of matmuls in f32."""

    def __init__(self, pairs: Pairs, settings: Buffer, memory: Memory) -> None:
        """Prepare for `train`. `settings` holds struct TrainSettings of train_settings.wgsl."""
        self.pairs = pairs
        self.settings = settings
        self.shapes: Mapping[str, tuple[int, ...]] = pairs.halves
        self.trained = tuple(self.shapes)
        self.buffers: list[TrainedBuffer] = []
        self._places: list[dict[str, SegmentPlace]] = []  # of the arrays in each buffer
        self._memory = memory

    def train(self, names: Sequence[str], part: LoadedPart) -> TrainedBuffer:
        """Train the weights of `part`, which are the arrays called `names`."""
        self._places.append(dict(zip(names, part.places, strict=True)))
        self.buffers.append(TrainedBuffer.create(", ".join(names), part.weights["weights"], self._memory))
        return self.buffers[-1]

    def pack(self, arrays: State) -> list[F32]:
        contents = [np.zeros(buffer.num_floats, np.float32) for buffer in self.buffers]
        for content, places in zip(contents, self._places, strict=True):
            for name, place in places.items():
                if name in arrays:
                    _view(content, place)[:] = to_panels(arrays[name], _BLOCK, np.float32).reshape(-1)
        return contents

    def unpack(self, contents: Sequence[F32]) -> dict[str, F32]:
        found = {}
        for content, places in zip(contents, self._places, strict=True):
            for name, place in places.items():
                blocks = place.panel_blocks // PANEL_ROWS
                panels = _view(content, place).reshape(-1, blocks, PANEL_ROWS, _BLOCK)
                found[name] = from_panels(panels, place.num_rows, place.num_columns)
        return {name: found[name] for name in self.shapes}


class VectorParameters:
    """Vectors of the model, which are trained in the buffers from which its layers read them.

    In the buffer of each layer, those that are trained must come before all others.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], settings: Buffer, difference: Buffer, memory: Memory
    ) -> None:
        """Prepare for `train`. `settings` holds struct TrainSettings of train_settings.wgsl."""
        self.shapes = shapes
        self.settings = settings
        self.difference = difference  # [2, T, D], for the second plane of a token shift without mixes
        self.trained = tuple(shapes)
        self.buffers: list[TrainedBuffer] = []
        self._starts: list[dict[str, int]] = []  # of the vectors in each buffer
        self._memory = memory

    def train(self, layer: int, starts: Mapping[str, int], values: Buffer) -> TrainedBuffer:
        """Train those vectors of a layer that have a shape; `starts` has their first floats in `values` by name."""
        if layer == len(self.buffers):
            own = {name: start for name, start in starts.items() if name in self.shapes}
            count = sum(math.prod(self.shapes[name]) for name in own)
            assert all(start < count for start in own.values())
            self._starts.append(own)
            self.buffers.append(TrainedBuffer.create(f"layer {layer} vectors", values, self._memory, num_floats=count))
        return self.buffers[layer]

    def pack(self, arrays: State) -> list[F32]:
        contents = [np.zeros(buffer.num_floats, np.float32) for buffer in self.buffers]
        for name, view in self._views(contents):
            if name in arrays:
                view[...] = arrays[name]
        return contents

    def unpack(self, contents: Sequence[F32]) -> dict[str, F32]:
        found = dict(self._views(contents))
        return {name: found[name].copy() for name in self.shapes}

    def _views(self, contents: Sequence[F32]) -> Iterator[tuple[str, F32]]:
        for content, starts in zip(contents, self._starts, strict=True):
            for name, start in starts.items():
                shape = self.shapes[name]
                yield name, content[start : start + math.prod(shape)].reshape(shape)


@dataclass(frozen=True, slots=True)
class Parameters:
    """All that is trained on a device, as named arrays on the host: an initial state, pairs, vectors."""

    parts: Sequence[StateParameters | PairParameters | VectorParameters]

    @property
    def buffers(self) -> list[TrainedBuffer]:
        return [buffer for part in self.parts for buffer in part.buffers]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every array by its name, also of those that are not trained."""
        return {name: shape for part in self.parts for name, shape in part.shapes.items()}

    @property
    def trained(self) -> list[str]:
        """The names of those that are trained."""
        return [name for part in self.parts for name in part.trained]

    def pack(self, arrays: State) -> list[F32]:
        """Return the content of each buffer for these arrays, with zeros for those that are missing."""
        return [content for part in self.parts for content in part.pack(arrays)]

    def unpack(self, contents: Sequence[F32]) -> dict[str, F32]:
        rest = iter(contents)
        found: dict[str, F32] = {}
        for part in self.parts:
            found |= part.unpack(list(islice(rest, len(part.buffers))))
        return found


def _view(content: F32, place: SegmentPlace) -> F32:
    """Return the part of a buffer's content that holds a matrix."""
    panels = round_up(place.num_rows, PANEL_ROWS) // PANEL_ROWS
    start = place.weights_start * _BLOCK
    return content[start : start + panels * place.panel_blocks * _BLOCK]
