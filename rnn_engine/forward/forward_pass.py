"""A model on its device: its states, the buffers of its steps, and the plan of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from rnn_engine.errors import DeviceError
from rnn_engine.forward.context import BuildContext
from rnn_engine.forward.draws import Following
from rnn_engine.forward.embedding import make_embedding
from rnn_engine.forward.head import Head
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.packing import COLUMNS_AT_ONCE
from rnn_engine.forward.stages import Stage
from rnn_engine.forward.state import StateLayout
from rnn_engine.forward.step import HeadOutputs, StepBuffers, StepLimits, StepSize
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.gpu import Buffer, Dispatch, Memory, Plan
from rnn_engine.types import F32, Model

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called while loading with what is being done, how many parts are done, and how many there are."""

LoadLayers: TypeAlias = Callable[[BuildContext], Iterator[tuple[Stage, ...]]]
"""Puts the layers of a model on the device, one a turn, and yields the stages of each."""


class ForwardPass:
    """The stages of a model, bound to their buffers. `plan` says what a step dispatches."""

    def __init__(
        self,
        model: Model,
        memory: Memory,
        matmuls: MatMulKernels,
        limits: StepLimits,
        load_layers: LoadLayers,
        format_of: FormatOf,
        progress: Progress,
    ) -> None:
        """Upload `model`, whose file may be closed afterwards. Raises DeviceError for a width that no kernel takes."""
        shape = model.shape
        if shape.width % COLUMNS_AT_ONCE:
            raise DeviceError(f"width {shape.width} is not served on a GPU; expected a multiple of {COLUMNS_AT_ONCE}")
        num_parts = shape.num_layers + 1
        self.state_layout = StateLayout(shape)
        self.states = [
            _create_states(layer, initial, limits.num_slots, memory)
            for layer, initial in enumerate(self.state_layout.pack(shape.initial_state()))
        ]
        self.buffers = StepBuffers.create(shape, limits, memory)
        self.outputs = HeadOutputs.create_pair(shape, limits, memory)
        context = BuildContext(
            model=model,
            format_of=format_of,
            memory=memory,
            kernels=matmuls.kernels,
            matmuls=matmuls,
            tuning=matmuls.tuning,
            limits=limits,
            buffers=self.buffers,
            state_layout=self.state_layout,
            states=self.states,
        )
        embedding, self.given = make_embedding(context)
        self._body: list[Stage] = [Following(context), *embedding, self.given]
        progress("loading layers", 0, num_parts)
        for done, stages in enumerate(load_layers(context), 1):
            self._body += stages
            progress("loading layers" if done < shape.num_layers else "loading the head", done, num_parts)
        head = Head(context)
        self._heads = tuple(head.bind(outputs) for outputs in self.outputs)
        progress("loaded", num_parts, num_parts)

    @property
    def weight_bytes(self) -> int:
        """Bytes of matrices that a step reads, the head's included."""
        return sum(stage.weight_bytes for stage in (*self._body, *self._heads[0].logits))

    def logits_plan(self, step: StepSize, side: int) -> Plan:
        """The dispatches of a step up to the logits of its rows, if it has any, in `outputs[side]`."""
        return Plan(tuple(self._logits_dispatches(step, side)))

    def readout_plan(self, step: StepSize, side: int) -> Plan:
        """The dispatches that read the logits of a step with rows out, and draw; its masks must be there."""
        head = self._heads[side]
        stages = (head.candidates, head.draw) if step.has_draws else (head.candidates,)
        return Plan(tuple(dispatch for stage in stages for dispatch in stage.dispatches(step)))

    def plan(self, step: StepSize, side: int) -> Plan:
        """The dispatches of a step; where it has rows, also those that write `outputs[side]`."""
        logits = self.logits_plan(step, side).dispatches
        return Plan((*logits, *self.readout_plan(step, side).dispatches) if step.num_rows else logits)

    def _logits_dispatches(self, step: StepSize, side: int) -> Iterator[Dispatch]:
        for stage in (*self._body, *(self._heads[side].logits if step.num_rows else ())):
            yield from stage.dispatches(step)


def _create_states(layer: int, initial: F32, num_slots: int, memory: Memory) -> Buffer:
    """A buffer with the state `initial` [stride] in each of its slots."""
    buffer = memory.create_buffer(f"states of layer {layer}", num_slots * initial.nbytes)
    if initial.any():  # a new buffer holds zeros
        memory.upload(buffer, 0, np.tile(initial, num_slots))
    return buffer
