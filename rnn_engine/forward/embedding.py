"""Tables with a row for each token: the embedding, with whose layer norm every step begins, and those of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rnn_engine.forward.context import BuildContext, PackedVectors
from rnn_engine.forward.packing import PANEL_ROWS
from rnn_engine.forward.stages import Stage
from rnn_engine.forward.step import StepSize
from rnn_engine.forward.upload import create_weight_buffers, upload_rows
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS, row_blocks
from rnn_engine.gpu import Buffer, Dispatch
from rnn_engine.types import F32
from shaders import Constant


class GivenEmbeddings:
    """The stage that takes in embeddings that runs bring: a table that is written for each step with some."""

    def __init__(self, context: BuildContext, constants: Mapping[str, Constant], buffers: Mapping[str, Buffer]) -> None:
        self._memory = context.memory
        self._format = WEIGHT_FORMATS["f32"]
        shape, limits = context.model.shape, context.limits
        panel_blocks = PANEL_ROWS * row_blocks(self._format, shape.width)
        num_blocks = -(-limits.max_tokens // PANEL_ROWS) * panel_blocks
        part = context.memory.create_buffer("part of the given embeddings", 12)
        context.memory.upload(part, 0, np.array([shape.vocab_size, limits.max_tokens, panel_blocks], np.uint32))
        self._stored = create_weight_buffers(context.memory, "given embeddings", self._format, num_blocks)
        self._stage = context.kernel_stage(
            "given embeddings",
            "embed",
            constants,
            {"part": part, **buffers, **self._stored},
            lambda step: (step.num_tokens, 1),
            {"WEIGHTS": self._format.include},
        )

    @property
    def weight_bytes(self) -> int:
        return 0

    def dispatches(self, step: StepSize) -> Iterator[Dispatch]:
        if step.has_given:
            yield from self._stage.dispatches(step)

    def upload(self, rows: F32) -> None:
        """Write the embeddings of the next step, [n, D]."""
        for variable, array in self._format.pack(rows).items():
            self._memory.upload(self._stored[variable], 0, array)


def make_embedding(context: BuildContext) -> tuple[tuple[Stage, ...], GivenEmbeddings]:
    """Upload the embedding and return the stages that look tokens up in it, and that for embeddings that runs bring."""
    vectors = PackedVectors.load(context, "ln0", "blocks.0.ln0.", ("weight", "bias"))
    constants = {"THREADS": context.tuning.norm_threads, "WIDTH": context.model.shape.width}
    buffers = {"vectors": vectors.buffer, "x": context.buffers.x}
    stages = table_stages(context, "embedding", "emb.weight", "embed", constants, buffers)
    return stages, GivenEmbeddings(context, constants, buffers)


def table_stages(
    context: BuildContext,
    label: str,
    name: str,
    kernel: str,
    constants: Mapping[str, Constant],
    buffers: Mapping[str, Buffer],
) -> tuple[Stage, ...]:
    """Upload the tensor `name` [V, C], in parts that fit a binding, and return the stage of each.

    The kernel includes table_part.wgsl, and runs a workgroup for each token of a step.
    """
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
                {"WEIGHTS": chosen.include},
            )
        )
    return tuple(stages)
