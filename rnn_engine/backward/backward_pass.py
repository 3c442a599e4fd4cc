"""A model loaded onto a device for training: its weights, what is trained, and the dispatches of each step.

The loss is computed in pieces of rows, so that no [T, V] of logits is held. Of a layer's activations, the device keeps
the residual stream before it and those of its channel mix. The time mix is run again before its backward stages,
except that of the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rnn_engine.backward.context import BackwardContext, BackwardLayer, LoadBackward
from rnn_engine.backward.contract import trained_fields
from rnn_engine.backward.matmul import TransposedMatMul
from rnn_engine.backward.parameters import PairParameters, Parameters, StateParameters, TrainedBuffer, VectorParameters
from rnn_engine.forward.context import BuildContext
from rnn_engine.forward.forward_pass import Embedding, Head, Progress, check_width
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.forward.stages import KernelStage, Stage, plan_of
from rnn_engine.forward.step import StepBuffers, StepLimits, StepSize
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer, Memory, Plan
from rnn_engine.types import Model, ModelShape
from rnn_engine_shaders import Constant

SETTINGS: Final = 8  # numbers in struct TrainSettings of train_settings.wgsl
_THREADS: Final = 64  # of a workgroup that handles one number of a state with each thread
_UPDATE_THREADS: Final = 256  # of one that updates a number with each thread


@dataclass(frozen=True, slots=True)
class TrainBuffers:
    """The device buffers of a step of training that models of every version have."""

    settings: Buffer  # struct TrainSettings of train_settings.wgsl
    row_weights: Buffer  # [R] f32 how much each row counts in the loss
    losses: Buffer  # [T] f32 the loss of each token that is a row
    logits: Buffer  # [R, V rounded up to 8] f32, then their gradients
    d_normed: Buffer  # [R, D] f32 the gradients of the rows after the last norm
    squared_norm: Buffer  # [1] f32 of the gradients of all layers

    @classmethod
    def create(cls, shape: ModelShape, limits: StepLimits, memory: Memory) -> TrainBuffers:
        return cls(
            settings=memory.create_buffer("settings of training", 4 * SETTINGS),
            row_weights=memory.create_buffer("weights of rows", 4 * limits.max_rows),
            losses=memory.create_buffer("losses", 4 * limits.max_tokens),
            logits=memory.create_buffer("logits", 4 * limits.max_rows * _logits_stride(shape)),
            d_normed=memory.create_buffer("gradients of normed rows", 4 * limits.max_rows * shape.width),
            squared_norm=memory.create_buffer("squared norm", 4),
        )


class BackwardPass:
    """A model loaded onto a device for training. Its methods return plans: lists of the kernel dispatches of a step."""

    def __init__(
        self,
        model: Model,
        memory: Memory,
        matmuls: MatMulKernels,
        limits: StepLimits,
        load_backward: LoadBackward,
        format_of: FormatOf,
        progress: Progress,
        *,
        trains_shifts: bool,
        state_rate: float | None,
    ) -> None:
        """Upload `model`, which may be closed then. A step has `limits.num_slots` documents. Raises DeviceError.

        Beside pairs, the initial state is trained only if `state_rate` says at how many times their rate.
        """
        shape = model.shape
        check_width(shape)
        num_parts = shape.num_layers + 1
        self._layout = layout = StateLayout(shape)
        self._initial: list[Buffer] = []  # of each layer, the state from which documents start [stride]
        for number, initial in enumerate(layout.pack(shape.initial_state())):
            self._initial.append(memory.create_buffer(f"initial state of layer {number}", initial.nbytes, use="states"))
            memory.upload(self._initial[-1], 0, initial)
        self.inputs = StepBuffers.create(shape, limits, memory)
        self.buffers = TrainBuffers.create(shape, limits, memory)
        trained = trained_fields(shape, trains_shifts=trains_shifts)
        pairs = None if matmuls.pairs is None else PairParameters(matmuls.pairs, self.buffers.settings, memory)
        vectors = None
        if pairs is not None and pairs.pairs.vectors:
            difference = memory.create_buffer("difference to the token before", 8 * limits.max_tokens * shape.width)
            vectors = VectorParameters(pairs.pairs.vectors, self.buffers.settings, difference, memory)
        self._state = None
        if pairs is None or state_rate is not None:
            self._state = StateParameters(shape, layout, self._initial, trained, state_rate or 1.0, memory)
        self.parameters = Parameters([each for each in (self._state, pairs, vectors) if each is not None])
        state_bytes = 4 * limits.num_slots * layout.stride
        states = memory.create_buffer("states of documents", state_bytes, use="states")
        self._context = BackwardContext(
            forward=BuildContext(
                model=model,
                format_of=format_of,
                memory=memory,
                matmuls=matmuls,
                limits=limits,
                buffers=self.inputs,
                state_layout=layout,
                states=[states] * shape.num_layers,
            ),
            dx=memory.create_buffer("gradient of x", 4 * limits.max_tokens * shape.width),
            state_gradients=memory.create_buffer("state gradients of documents", state_bytes),
            trains_shifts=trains_shifts,
            pairs=pairs,
            vectors=vectors,
        )
        self._is_trained = memory.create_buffer("which numbers are trained", 4 * layout.stride)
        marks = {name: np.full_like(values, name in trained) for name, values in shape.initial_state().items()}
        memory.upload(self._is_trained, 0, layout.pack(marks)[0])
        self._embedding = Embedding(self._context.forward)
        self._clear = self._on_tokens("clear the gradient", "clear", {"dx": self._context.dx})
        self._layers: list[_LayerStages] = []
        progress("loading layers", 0, num_parts)
        for layer in load_backward(self._context):
            self._layers.append(self._surround(len(self._layers), layer))
            done = len(self._layers)
            progress("loading layers" if done < shape.num_layers else "loading the head", done, num_parts)
        self._loss, self._row_gradients = self._load_head()
        self._updates = [self._update(trained) for trained in self.parameters.buffers]
        memory.finish_uploads()
        progress("loaded", num_parts, num_parts)

    def forward_plan(self, step: StepSize, *, keeps: bool) -> Plan:
        """Return the dispatches of the layers' forward pass; if `keeps`, they keep what `backward_plan` needs."""
        stages: list[Stage] = [*self._embedding.stages, *((self._clear,) if keeps else ())]
        for layer in self._layers:
            stages += [layer.start, *((layer.keep,) if keeps else ()), *layer.stages.forward]
        return plan_of(stages, step)

    def loss_plan(self, step: StepSize, *, has_gradient: bool) -> Plan:
        """Return the dispatches of the rows' losses, and if `has_gradient` of their gradient in the residual stream."""
        return plan_of(self._row_gradients if has_gradient else self._loss, step)

    def backward_plan(self, step: StepSize) -> Plan:
        """Return the dispatches that add the parameters' gradients, right after those for the losses of all rows."""
        stages: list[Stage] = []
        kept = self._layers[-1] if self._context.pairs is None else None  # pairs need the mixes, which do not last
        for layer in reversed(self._layers):
            recompute = () if layer is kept else layer.stages.recompute
            stages += [layer.restore, layer.start, *recompute, *layer.stages.backward, *layer.add]
        return plan_of(stages, step)

    def update_plan(self) -> Plan:
        """Return the dispatches that change the parameters by their gradients, and clear these. The norm must be 0."""
        stages = [measure for measure, _ in self._updates] + [update for _, update in self._updates]
        return plan_of(stages, StepSize(0, 0, 0))

    def _load_head(self) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
        """Upload the head; return the stages that compute the losses of rows, and those with their gradients, too."""
        context, buffers = self._context.forward, self.buffers
        head = Head(context, logits_stride=_logits_stride(context.model.shape))
        norm, matmul = head.bind_logits(buffers.logits)
        transposed = TransposedMatMul.of(
            matmul, context.memory, output_gradients=buffers.logits, input_gradients=buffers.d_normed
        )
        norm_backward = context.kernel_stage(
            "norm rows, backward",
            "norm_rows_backward",
            {"THREADS": context.tuning.norm_threads, **context.norm_constants},
            {"x": self.inputs.x, "vectors": head.norm.buffer, "d_normed": buffers.d_normed, "dx": self._context.dx},
            lambda step: (step.num_rows, 1),
        )
        loss, gradient = (self._cross_entropy(needs_gradient=needs_gradient) for needs_gradient in (False, True))
        return (norm, matmul, loss), (norm, matmul, gradient, transposed, norm_backward)

    def _cross_entropy(self, *, needs_gradient: bool) -> KernelStage:
        context, buffers = self._context.forward, self.buffers
        shape = context.model.shape
        return context.kernel_stage(
            "cross-entropy",
            "cross_entropy",
            {
                "THREADS": context.tuning.candidate_threads,
                "VOCAB": shape.vocab_size,
                "STRIDE": _logits_stride(shape),
                "NEEDS_GRADIENT": needs_gradient,
            },
            {"weights": buffers.row_weights, "logits": buffers.logits, "losses": buffers.losses},
            lambda step: (step.num_rows, 1),
        )

    def _surround(self, number: int, stages: BackwardLayer) -> _LayerStages:
        """Return the stages of a layer with those that every version's layers need before and after them."""
        context, initial = self._context.forward, self._initial[number]
        limits, stride = context.limits, self._layout.stride
        residual_bytes = 4 * limits.max_tokens * context.model.shape.width
        residual = context.memory.create_buffer(f"input of layer {number}", residual_bytes)
        x, label = self.inputs.x, f"layer {number}"
        groups, constants = -(-stride // _THREADS), {"THREADS": _THREADS, "STATE_STRIDE": stride}
        add = []
        if self._state is not None:
            buffers = {
                "settings": self.buffers.settings,
                "is_trained": self._is_trained,
                "state_gradients": self._context.state_gradients,
                "gradient": self._state.buffers[number].gradient,
            }
            name = "sum_state_gradients"
            add.append(context.kernel_stage(f"{label} gradient", name, constants, buffers, lambda _: (groups, 1)))
        return _LayerStages(
            stages,
            start=self._stage(
                f"{label} initial state",
                "set_states",
                constants,
                {"initial": initial, "state": context.states[number]},
                lambda step: (groups, step.num_runs),
            ),
            keep=self._on_tokens(f"{label} keep the input", "keep_embedding", {"x": x, "kept": residual}, START=0),
            restore=self._on_tokens(
                f"{label} restore the input", "keep_embedding", {"x": residual, "kept": x}, START=0
            ),
            add=tuple(add),
        )

    def _update(self, trained: TrainedBuffer) -> tuple[KernelStage, KernelStage]:
        """Return the stages that add to the squared norm, and that make a step of Adam."""
        buffers, count = self.buffers, trained.num_floats
        groups = -(-count // _UPDATE_THREADS)
        gradient = {"squared_norm": buffers.squared_norm, "gradient": trained.gradient}
        measure = self._stage(
            f"{trained.label} squared norm",
            "squared_norm",
            {"THREADS": self._context.forward.tuning.candidate_threads, "COUNT": count},
            gradient,
            lambda _: (1, 1),
        )
        moments = {"values": trained.values, "first": trained.first, "second": trained.second}
        update = self._stage(
            f"{trained.label} update",
            "adam",
            {"THREADS": _UPDATE_THREADS, "COUNT": count, "RATE_FACTOR": trained.rate_factor},
            {"settings": buffers.settings, **gradient, **moments},
            lambda _: (groups, 1),
        )
        return measure, update

    def _on_tokens(self, label: str, name: str, buffers: Mapping[str, Buffer], **constants: Constant) -> KernelStage:
        """Return a stage that runs the shader `name` with a workgroup for each token."""
        context = self._context.forward
        common: dict[str, Constant] = {"THREADS": context.tuning.norm_threads, "WIDTH": context.model.shape.width}
        return self._stage(label, name, {**common, **constants}, buffers, lambda step: (step.num_tokens, 1))

    def _stage(
        self,
        label: str,
        name: str,
        constants: Mapping[str, Constant],
        buffers: Mapping[str, Buffer],
        workgroups: Callable[[StepSize], tuple[int, int]],
    ) -> KernelStage:
        """Return a stage that runs the shader `name`, which does not read the batch."""
        kernels = self._context.forward.kernels
        kernel = kernels.get(name, constants)
        return KernelStage(label, kernel, kernels.bind(kernel.source, buffers), workgroups)


@dataclass(frozen=True, slots=True)
class _LayerStages:
    """The stages of one layer: its version's, and those that every version's layers need."""

    stages: BackwardLayer
    start: KernelStage  # sets the states of the documents to the initial state
    keep: KernelStage  # copies the residual stream to the layer's buffer
    restore: KernelStage  # copies it back
    add: tuple[KernelStage, ...]  # adds the gradients of the documents to that of the initial state, if it is trained


def _logits_stride(shape: ModelShape) -> int:
    return round_up(shape.vocab_size, 8)
