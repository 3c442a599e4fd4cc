"""The backward pass of a model's layers on a device and in numpy, from the same gradient of the last layer's output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rnn_engine.backward.context import BackwardContext
from rnn_engine.forward.context import BuildContext
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.forward.stages import Stage
from rnn_engine.forward.step import StepBuffers, StepLimits, StepSize, encode_batch
from rnn_engine.forward.weight_choice import parse_weights
from rnn_engine.gpu import Buffer, Plan, Recorder
from rnn_engine.reference import Array, Weights, embed
from rnn_engine.types import F32, FieldKind, ModelShape, TokenRun
from rnn_engine.versions.table import VERSIONS
from tests.support.gpu import ROW_ROOM, TOKEN_ROOM, open_checked
from tests.support.models import TensorModel


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Documents, the states that they start from, and the gradient of a loss with respect to the last output."""

    ids: Array  # [T]
    lengths: tuple[int, ...]  # of the documents, T together
    states: Mapping[str, Array]  # [B, L, ...] a field
    dx: Array  # [T, D]

    @classmethod
    def draw(cls, shape: ModelShape, lengths: Sequence[int], seed: int) -> Case:
        """Return a random case. The states have the magnitude of those after some tokens."""
        generator = np.random.default_rng(seed)
        states = {
            field.name: generator.normal(0.0, 0.3, (len(lengths), shape.num_layers, *field.shape))
            for field in shape.state_fields
        }
        ids = generator.integers(shape.vocab_size, size=sum(lengths))
        return cls(ids, tuple(lengths), states, generator.normal(0.0, 1.0, (sum(lengths), shape.width)))


def reference_gradients(model: TensorModel, case: Case) -> tuple[list[Array], dict[str, Array]]:
    """Return the inputs of the layers and the output of the last, L + 1 arrays [T, D], and the states' gradients."""
    version = VERSIONS.get(model.shape.version)
    weights = Weights(model.shape, model.tensor, np.float64)
    streams = [embed(weights, case.ids)]
    watched = weights.watched(lambda _, x: streams.append(x.copy()))
    version.run_layers(watched, case.ids, case.lengths, case.states)
    assert version.run_backward is not None
    return streams, version.run_backward(weights, streams[:-1], case.dx, case.lengths, case.states)


class DeviceLayers:
    """The layers of a model with their backward pass, loaded onto the device with the choices for a kind of device."""

    def __init__(
        self,
        model: TensorModel,
        *,
        max_documents: int,
        kind: str = "software",
        weights: str = "f32",
        trains_shifts: bool = True,
    ) -> None:
        self.model = model
        shape = self.shape = model.shape
        device, tuning = open_checked(kind)
        self.limits = StepLimits(max_documents, TOKEN_ROOM, ROW_ROOM, num_candidates=1)
        self.memory = device.allocate()
        self.layout = StateLayout(shape)
        self._recorder = Recorder(device)
        states = self.memory.create_buffer("states", 4 * max_documents * self.layout.stride)
        self.context = BackwardContext(
            forward=BuildContext(
                model=model,
                format_of=parse_weights(weights, shape)[0],
                memory=self.memory,
                matmuls=MatMulKernels(device.kernels, tuning, self.limits),
                limits=self.limits,
                buffers=StepBuffers.create(shape, self.limits, self.memory),
                state_layout=self.layout,
                states=[states] * shape.num_layers,
            ),
            dx=self.memory.create_buffer("dx", 4 * TOKEN_ROOM * shape.width),
            state_gradients=self.memory.create_buffer("state gradients", 4 * max_documents * self.layout.stride),
            trains_shifts=trains_shifts,
        )
        load_backward = VERSIONS.get(shape.version).load_backward
        assert load_backward is not None
        self.layers = tuple(load_backward(self.context))

    def gradients(self, case: Case) -> tuple[list[F32], dict[str, F32]]:
        """Run a case forward and backward. Return what `reference_gradients` does."""
        forward, context = self.context.forward, self.context
        documents = np.split(case.ids, np.cumsum(case.lengths)[:-1])
        batch = [TokenRun(slot, ids.tolist()) for slot, ids in enumerate(documents)]
        step = StepSize(len(case.ids), len(batch), 0)
        words = encode_batch(batch, self.limits, [0] * len(batch))
        self.memory.upload(forward.buffers.batch, 0, words)
        packed = [self._pack(case.states, slot) for slot in range(len(batch))]  # [L, stride] each
        weights = Weights(self.shape, forward.model.tensor)
        streams: list[F32] = [embed(weights, case.ids)]
        for number, layer in enumerate(self.layers):
            self._run(layer.forward, step, forward.buffers.x, streams[-1], packed, number)
            streams.append(self._read(forward.buffers.x, len(case.ids), self.shape.width))
        self.memory.upload(context.dx, 0, case.dx.astype(np.float32))
        gradients = np.empty((len(batch), self.shape.num_layers, self.layout.stride), np.float32)
        for number, layer in reversed(list(enumerate(self.layers))):
            stages = (*layer.recompute, *layer.backward)
            self._run(stages, step, forward.buffers.x, streams[number], packed, number)
            gradients[:, number] = self._read(context.state_gradients, len(batch), self.layout.stride)
        fields = {field.name for field in self.shape.state_fields if field.kind is not FieldKind.VECTOR}
        unpacked = [self.layout.unpack(each, 0) for each in gradients]
        return streams, {name: np.stack([each[name] for each in unpacked]) for name in fields}

    def show(self, stages: Iterable[Stage], *, num_tokens: int, num_runs: int) -> str:
        """Return the dispatches of `stages` in a step of this size as a readable list."""
        return f"{_plan(stages, StepSize(num_tokens, num_runs, 0))}\n"

    def _pack(self, states: Mapping[str, Array], slot: int) -> F32:
        return self.layout.pack({name: values[slot].astype(np.float32) for name, values in states.items()})

    def _run(
        self, stages: Iterable[Stage], step: StepSize, x: Buffer, stream: F32, packed: Sequence[F32], layer: int
    ) -> None:
        self.memory.upload(x, 0, stream)
        states = np.stack([each[layer] for each in packed])
        self.memory.upload(self.context.forward.states[layer], 0, states)
        self._recorder.submit(_plan(stages, step))

    def _read(self, buffer: Buffer, rows: int, columns: int) -> F32:
        found = np.frombuffer(self.memory.read(buffer, 0, 4 * rows * columns), np.float32)
        return found.reshape(rows, columns)


def _plan(stages: Iterable[Stage], step: StepSize) -> Plan:
    return Plan(tuple(dispatch for stage in stages for dispatch in stage.dispatches(step)))
