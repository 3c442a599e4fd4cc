"""Tables with a row for each token: the embedding, with whose layer norm every step begins, and those of layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rnn_engine.forward.context import BuildContext, PackedVectors
from rnn_engine.forward.packing import PANEL_ROWS
from rnn_engine.forward.stages import Stage
from rnn_engine.forward.upload import create_weight_buffers, upload_rows
from rnn_engine.forward.weight_formats import row_blocks
from rnn_engine.gpu import Buffer
from shaders import Constant


def embedding_stages(context: BuildContext) -> tuple[Stage, ...]:
    """Upload the embedding and return the stages that look tokens up in it."""
    vectors = PackedVectors.load(context, "ln0", "blocks.0.ln0.", ("weight", "bias"))
    constants = {"THREADS": context.tuning.norm_threads, "WIDTH": context.model.shape.width}
    buffers = {"vectors": vectors.buffer, "x": context.buffers.x}
    return table_stages(context, "embedding", "emb.weight", "embed", constants, buffers)


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
