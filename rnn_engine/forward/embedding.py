"""The embedding and its layer norm, with which every step begins."""

from __future__ import annotations

import numpy as np

from rnn_engine.forward.context import BuildContext, PackedVectors
from rnn_engine.forward.packing import PANEL_ROWS
from rnn_engine.forward.stages import Stage
from rnn_engine.forward.upload import create_weight_buffers, upload_rows


def embedding_stages(context: BuildContext) -> tuple[Stage, ...]:
    """Upload the embedding, in parts that fit a binding, and return the stage of each."""
    weights = context.weights("emb.weight")  # [V, D]
    table, chosen = weights.values, weights.format
    num_rows, width = table.shape
    vectors = PackedVectors.load(context, "ln0", "blocks.0.ln0.", ("weight", "bias"))
    panel_blocks = PANEL_ROWS * -(-width // chosen.block_columns)
    panel_bytes = panel_blocks * max(chosen.block_bytes.values())
    part_rows = context.memory.max_binding_bytes // panel_bytes * PANEL_ROWS
    stages = []
    for first in range(0, num_rows, part_rows):
        rows = table[first : first + part_rows]
        part = context.memory.create_buffer("part of the embedding", 12)
        context.memory.upload(part, 0, np.array([first, len(rows), panel_blocks], np.uint32))
        num_blocks = -(-len(rows) // PANEL_ROWS) * panel_blocks
        buffers = create_weight_buffers(context.memory, "embedding", chosen, num_blocks)
        upload_rows(context.memory, buffers, chosen, rows, 0)
        stages.append(
            context.kernel_stage(
                "embedding",
                "embed",
                {"THREADS": context.tuning.norm_threads, "WIDTH": width},
                {"part": part, "vectors": vectors.buffer, "x": context.buffers.x, **buffers},
                lambda step: (step.num_tokens, 1),
                {"WEIGHTS": chosen.include},
            )
        )
    return tuple(stages)
