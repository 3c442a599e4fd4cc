"""A model loaded onto a device: its weights, the states of its slots, and the dispatches of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from rnn_engine.errors import DeviceError
from rnn_engine.forward.context import BuildContext, CarriedRows, PackedVectors
from rnn_engine.forward.matmul import BoundMatMul, MatMul, MatMulBuffers, MatMulKernels
from rnn_engine.forward.segments import Matrix, create_weight_buffers, upload_rows
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.forward.stages import KernelStage, Stage, plan_of
from rnn_engine.forward.step import Following, HeadOutputs, StepBuffers, StepLimits, StepSize
from rnn_engine.forward.tuning import Tuning
from rnn_engine.forward.weight_choice import FormatOf
from rnn_engine.forward.weight_formats import COLUMNS_AT_ONCE, PANEL_ROWS, row_blocks
from rnn_engine.gpu import Buffer, Dispatch, Memory, Plan
from rnn_engine.types import F32, MOST_DRAW_BIASES, Model, ModelShape
from rnn_engine_shaders import Constant, Include

# Look-ups in tables with a row for each token of the vocabulary: the embedding, and the tables of layers.


class Embedding:
    """A model's embedding table and any norm after it on the device, with the stages that look up token ids."""

    def __init__(self, context: BuildContext) -> None:
        """Upload the weights. The stages write the input vector of each token."""
        names = context.model.shape.tensor_names
        norm = names.embedding_norm
        unread = {"none": np.zeros(1, np.float32)}  # the kernel wants a buffer
        vectors = (
            PackedVectors.pack(context, "no embedding norm", unread)
            if norm is None
            else PackedVectors.load(context, "embedding norm", f"{norm}.", ("weight", "bias"))
        )
        constants = {"THREADS": context.tuning.norm_threads, **context.norm_constants, "NORMS": norm is not None}
        buffers = {"vectors": vectors.buffer, "x": context.buffers.x}
        self.stages = table_stages(context, "embedding", names.embedding, "embed", constants, buffers)


def table_stages(
    context: BuildContext,
    label: str,
    name: str,
    kernel: str,
    constants: Mapping[str, Constant],
    buffers: Mapping[str, Buffer],
) -> tuple[Stage, ...]:
    """Return a stage for each part of the table [V, C] that fits a binding. `kernel` includes table_part.wgsl."""
    weights = context.weights(name)
    table, chosen = weights.values, weights.format
    num_rows, width = table.shape
    panel_blocks = PANEL_ROWS * row_blocks(chosen, width)
    panel_bytes = panel_blocks * max(chosen.block_bytes.values())
    part_rows = context.memory.max_binding_bytes // panel_bytes * PANEL_ROWS
    stages = []
    for first in range(0, num_rows, part_rows):
        rows = table[first : first + part_rows]
        part = context.memory.create_buffer(f"part of the {label}", 12)
        context.memory.upload(part, 0, np.array([first, len(rows), panel_blocks], np.uint32))
        num_blocks = -(-len(rows) // PANEL_ROWS) * panel_blocks
        stored = create_weight_buffers(context.memory, label, chosen, num_blocks)
        upload_rows(context.memory, stored, chosen, rows, 0)
        stages.append(
            context.kernel_stage(
                label,
                kernel,
                constants,
                {"part": part, **buffers, **stored},
                lambda step: (step.num_tokens, 1),
                context.tuning.weight_includes(chosen),
            )
        )
    return tuple(stages)


# The end of a forward pass: the last norm, the head, and the candidates of each row.


class Head:
    """The last norm and head matrix on the device. Without a matrix, normed rows stand in place of logits."""

    def __init__(self, context: BuildContext, *, logits_stride: int | None = None) -> None:
        """Upload the weights. A row of logits takes `logits_stride` floats of its buffer, by default V."""
        shape = context.model.shape
        names = shape.tensor_names
        self._context = context
        self.norm = PackedVectors.load(context, "head norm", f"{names.head_norm}.", ("weight", "bias"))
        self._matmul: MatMul | None = None
        if shape.has_head:
            matrix = Matrix(context.weights(names.head), 0, shape.width, 0, logits_stride or shape.vocab_size)
            self._matmul = MatMul("head", [matrix], context.matmuls, context.memory, counts_rows=True)
        size = shape.row_size, context.limits.num_candidates
        self._candidate_kernels = [candidate_kernels(context.tuning, *size, masks=masks) for masks in (False, True)]
        part_bytes = context.limits.max_rows * self._candidate_kernels[0][0].found_bytes
        self._parts = context.memory.create_buffer("candidates of parts", part_bytes)

    def bind(self, outputs: HeadOutputs) -> HeadStages:
        """Return the stages that write logits to `outputs`, find candidates and draw, for steps with a logit row."""
        candidates = FindCandidates(self._candidates(outputs, masks=False), self._candidates(outputs, masks=True))
        rows: tuple[Stage, ...]
        rows = (self._norm_rows(outputs.logits),) if self._matmul is None else self.bind_logits(outputs.logits)
        return HeadStages(rows, candidates, self._draw(outputs))

    def bind_logits(self, logits: Buffer) -> tuple[KernelStage, BoundMatMul]:
        """Return the stages that compute a step's rows of logits and write them to `logits`."""
        assert self._matmul is not None, "the model has a head"
        normed = self._context.buffers.normed
        inputs = MatMulBuffers(self._context.buffers.batch, self.norm.buffer, normed, logits)
        return self._norm_rows(normed), self._matmul.bind(inputs)

    def _norm_rows(self, normed: Buffer) -> KernelStage:
        context = self._context
        return context.kernel_stage(
            "norm rows",
            "norm_rows",
            {"THREADS": context.tuning.norm_threads, **context.norm_constants},
            {"x": context.buffers.x, "vectors": self.norm.buffer, "normed": normed},
            lambda step: (step.num_rows, 1),
        )

    def _candidates(self, outputs: HeadOutputs, *, masks: bool) -> tuple[KernelStage, ...]:
        buffers = {"logits": outputs.logits, "masks": self._context.buffers.masks, "readout": outputs.readout}
        buffers["parts"] = self._parts
        return tuple(self._search(kernel, buffers) for kernel in self._candidate_kernels[masks])

    def _search(self, kernel: CandidateKernel, buffers: Mapping[str, Buffer]) -> KernelStage:
        return self._context.kernel_stage(
            "candidates" if kernel.num_parts == 1 else "candidates of parts",
            "candidates",
            kernel.constants,
            {name: buffers[name] for name in kernel.buffers},
            lambda step: (step.num_rows, kernel.num_parts),
            kernel.includes,
            waits=kernel.waits,
        )

    def _draw(self, outputs: HeadOutputs) -> KernelStage:
        context, buffers = self._context, self._context.buffers
        return context.kernel_stage(
            "draw",
            "draw",
            {
                "THREADS": context.tuning.norm_threads,
                "VOCAB": context.model.shape.row_size,
                "K": context.limits.num_candidates,
                "MAX_DRAWS": context.limits.max_draws,
                "MAX_BIASES": MOST_DRAW_BIASES,
            },
            {
                "readout": outputs.readout,
                "halts": buffers.halts,
                "draws": buffers.draws,
                "last_drawn": buffers.last_drawn,
                "logits": outputs.logits,
                "penalties": buffers.penalties,
                "biases": buffers.biases,
            },
            lambda step: (step.num_rows, 1),
            waits=8,  # for the row's token, run, slot and settings, for its candidates, and for what these point to
        )


@dataclass(frozen=True, slots=True)
class CandidateKernel:
    """One of the kernels that find the candidates of rows of logits, with a workgroup for each part of a row."""

    num_parts: int
    constants: dict[str, Constant]
    buffers: tuple[str, ...]  # by variable, besides the batch
    includes: dict[str, Include] = field(default_factory=dict)

    @property
    def waits(self) -> int:
        return 7 * int(self.constants["TURNS"]) - 6 * (self.constants["TURNS"] == 1)  # one turn keeps what it loads

    @property
    def found_bytes(self) -> int:
        """The bytes of `struct Part` of candidates.wgsl for the parts of a row."""
        return 4 * self.num_parts * (6 + 2 * int(self.constants["K"]))


def candidate_kernels(tuning: Tuning, vocab_size: int, count: int, *, masks: bool) -> list[CandidateKernel]:
    """Return the kernels that find the `count` candidates of rows [V], with or without `masks`, in their order.

    If a row is shared, a part is the geometric mean of a row and its candidates: the second kernel, which searches
    what was found in the parts, then has about as much to search as the workgroups of the first one.
    """
    threads = tuning.candidate_threads
    is_shared = tuning.shares_rows and vocab_size > threads * tuning.candidate_loads
    size = threads * (math.isqrt(vocab_size * count) // threads + 1) if is_shared else vocab_size
    parts = -(-vocab_size // size)

    def constants(num_items: int, **own: Constant) -> dict[str, Constant]:
        loads = min(tuning.candidate_loads, -(-num_items // threads))
        turns = -(-num_items // (threads * loads))
        return {"THREADS": threads, "LOADS": loads, "TURNS": turns, "VOCAB": vocab_size, "K": count, **own}

    whole = constants(size, PART_SIZE=size, HAS_MASKS=masks)
    if not is_shared:
        return [CandidateKernel(1, whole, ("logits", "masks", "readout"))]
    shared, merged = {**whole, "PARTS": parts}, constants(parts * count, PARTS=parts)
    return [
        CandidateKernel(parts, shared, ("logits", "masks", "parts"), {"found_in_row": "found_in_part"}),
        CandidateKernel(1, merged, ("logits", "parts", "readout"), {"logits_of_row": "keys_of_parts"}),
    ]


@dataclass(frozen=True, slots=True)
class HeadStages:
    """The stages after a model's last layer, which compute logits, find the top candidates and draw tokens."""

    logits: tuple[Stage, ...]  # write the logits
    candidates: Stage  # reduces them to candidates
    draw: Stage  # draws from the candidates


@dataclass(frozen=True, slots=True)
class FindCandidates:
    """The stage that finds the top candidates of each logit row, with quicker kernels for steps without masks."""

    without_masks: tuple[KernelStage, ...]
    with_masks: tuple[KernelStage, ...]

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        yield from plan_of(self.with_masks if step.has_masks else self.without_masks, step).dispatches


Progress: TypeAlias = Callable[[str, int, int], None]
"""Called during a load with the current task, the number of parts that are done, and the number of all parts."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Default progress callback; ignores its arguments."""


LoadLayers: TypeAlias = Callable[[BuildContext], Iterator[tuple[Stage, ...]]]
"""Uploads the layers of a model to the device one after another, and yields the stages of each."""


def check_width(shape: ModelShape) -> None:
    """Raise DeviceError if the kernels can't run a model of this width."""
    if shape.width % COLUMNS_AT_ONCE:
        raise DeviceError(f"width {shape.width} is not supported on a GPU; expected a multiple of {COLUMNS_AT_ONCE}")


class ForwardPass:
    """A model, or a part of one, loaded onto a device. Its methods return plans: lists of the dispatches of a step."""

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
        """Upload `model`, which may be closed afterwards. Raises DeviceError if its width is no multiple of 8."""
        shape = model.shape
        check_width(shape)
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
            matmuls=matmuls,
            limits=limits,
            buffers=self.buffers,
            state_layout=self.state_layout,
            states=self.states,
        )
        self.has_head = context.has_head
        self._body: list[Stage] = []
        if context.has_embedding:
            self._body = [Following(context), *Embedding(context).stages]
        self._layer_ends: list[int] = []  # for each layer, how many stages of the body run up to its end
        progress("loading layers", 0, num_parts)
        for done, stages in enumerate(load_layers(context), 1):
            self._body += stages
            self._layer_ends.append(len(self._body))
            progress("loading layers" if done < shape.num_layers else "loading the head", done, num_parts)
        self.carried = (CarriedRows(self.buffers.x), *context.carried)
        head = Head(context) if self.has_head else None
        self._heads = () if head is None else tuple(head.bind(outputs) for outputs in self.outputs)
        memory.finish_uploads()
        progress("loaded", num_parts, num_parts)

    def logits_plan(self, step: StepSize, side: int) -> Plan:
        """Return the dispatches of a step up to the logits, in `outputs[side]`, without masks and draws."""
        return plan_of([*self._body, *(self._heads[side].logits if step.num_rows else ())], step)

    def traced_plans(self, step: StepSize, layers: Collection[int]) -> Iterator[tuple[int | None, Plan]]:
        """Yield `logits_plan` of side 0 in parts that end after `layers`, each with its layer; the last with None."""
        stages = [*self._body, *(self._heads[0].logits if step.num_rows else ())]
        ends = [(layer, self._layer_ends[layer]) for layer in sorted(layers)]
        start = 0
        for layer, end in [*ends, (None, len(stages))]:
            yield layer, plan_of(stages[start:end], step)
            start = end

    def readout_plan(self, step: StepSize, side: int) -> Plan:
        """Return the dispatches after `logits_plan` and the upload of masks: find candidates, and draw tokens."""
        head = self._heads[side]
        return plan_of((head.candidates, head.draw) if step.has_draws else (head.candidates,), step)

    def plan(self, step: StepSize, side: int) -> Plan:
        """Return all dispatches of a step of size `step`. Logits and read-outs of its rows go to `outputs[side]`."""
        logits = self.logits_plan(step, side).dispatches
        return Plan((*logits, *self.readout_plan(step, side).dispatches) if step.num_rows else logits)


def _create_states(layer: int, initial: F32, num_slots: int, memory: Memory) -> Buffer:
    """Create the device buffer with a layer's states of all slots, and fill each slot with `initial` [stride]."""
    buffer = memory.create_buffer(f"states of layer {layer}", num_slots * initial.nbytes, use="states")
    if initial.any():  # a new buffer holds zeros
        memory.upload(buffer, 0, np.tile(initial, num_slots))
    return buffer
