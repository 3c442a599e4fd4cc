"""The end of a forward pass: the last norm, the head, and the candidates of the rows whose logits are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rnn_engine.draws import MOST_DRAW_BIASES
from rnn_engine.forward.context import BuildContext, PackedVectors
from rnn_engine.forward.matmul import MatMul, MatMulBuffers
from rnn_engine.forward.segments import Matrix
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.step import HeadOutputs, StepSize
from rnn_engine.gpu import Dispatch


class Head:
    """The weights of the head on the device. `bind` gives its stages for one set of outputs."""

    def __init__(self, context: BuildContext) -> None:
        shape = context.model.shape
        self._context = context
        self._norm = PackedVectors.load(context, "ln_out", "ln_out.", ("weight", "bias"))
        matrix = Matrix(context.weights("head.weight"), 0, shape.width, 0, shape.vocab_size)
        self._matmul = MatMul("head", [matrix], context.matmuls, context.memory, counts_rows=True)

    def bind(self, outputs: HeadOutputs) -> HeadStages:
        """The stages that write `outputs`, for steps with at least one row."""
        context = self._context
        shape, tuning, buffers = context.model.shape, context.tuning, context.buffers
        norm = context.kernel_stage(
            "norm rows",
            "norm_rows",
            {"THREADS": tuning.norm_threads, "WIDTH": shape.width},
            {"x": buffers.x, "vectors": self._norm.buffer, "normed": buffers.normed},
            lambda step: (step.num_rows, 1),
        )
        matmul = self._matmul.bind(MatMulBuffers(buffers.batch, self._norm.buffer, buffers.normed, outputs.logits))
        candidates = Candidates(self._candidates(outputs, masks=False), self._candidates(outputs, masks=True))
        return HeadStages((norm, matmul), candidates, self._draw(outputs))

    def _candidates(self, outputs: HeadOutputs, *, masks: bool) -> KernelStage:
        context = self._context
        return context.kernel_stage(
            "candidates",
            "candidates",
            {
                "THREADS": context.tuning.candidate_threads,
                "VOCAB": context.model.shape.vocab_size,
                "K": context.limits.num_candidates,
                "HAS_MASKS": masks,
            },
            {"logits": outputs.logits, "masks": context.buffers.masks, "readout": outputs.readout},
            lambda step: (step.num_rows, 1),
        )

    def _draw(self, outputs: HeadOutputs) -> KernelStage:
        context, buffers = self._context, self._context.buffers
        return context.kernel_stage(
            "draw",
            "draw",
            {
                "THREADS": context.tuning.candidate_threads,
                "VOCAB": context.model.shape.vocab_size,
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
        )


@dataclass(frozen=True, slots=True)
class HeadStages:
    """The stages of the head for one set of outputs."""

    logits: tuple[Stage, ...]  # that write the logits
    candidates: Stage  # that reduces them
    draw: Stage  # that draws from what is left of them


@dataclass(frozen=True, slots=True)
class Candidates:
    """The stage that reduces rows to candidates, by a quicker kernel where no row has a mask."""

    without_masks: KernelStage
    with_masks: KernelStage

    @property
    def weight_bytes(self) -> int:
        return 0

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        stage = self.with_masks if step.has_masks else self.without_masks
        return stage.dispatches(step)
