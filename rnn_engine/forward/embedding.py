"""The embedding and its layer norm, with which every step begins."""

from __future__ import annotations

from typing import Final

import numpy as np

from rnn_engine.forward.context import BuildContext, PackedVectors
from rnn_engine.forward.stages import Stage

_TABLES: Final = {"float16": "table_f16", "bfloat16": "table_bf16", "float32": "table_f32"}


def embedding_stages(context: BuildContext) -> tuple[Stage, ...]:
    """Upload the embedding, in parts that fit a binding, and return the stage of each.

    The table keeps the number format that the model's file has, whatever the weight format of the matrices: a look-up
    costs little, and so loses nothing.
    """
    table = context.model.tensor("emb.weight")  # [V, D]
    if table.dtype.name not in _TABLES:
        table = table.astype(np.float32)
    vectors = PackedVectors.load(context, "ln0", "blocks.0.ln0.", ("weight", "bias"))
    row_bytes = table.shape[1] * table.itemsize
    part_rows = context.memory.max_binding_bytes // row_bytes
    stages = []
    for first in range(0, len(table), part_rows):
        rows = table[first : first + part_rows]
        weights = context.memory.create_buffer("embedding", rows.nbytes)
        context.memory.upload(weights, 0, rows)
        part = context.memory.create_buffer("part of the embedding", 8)
        context.memory.upload(part, 0, np.array([first, len(rows)], np.uint32))
        stages.append(
            context.kernel_stage(
                "embedding",
                "embed",
                {"THREADS": context.tuning.norm_threads, "WIDTH": table.shape[1]},
                {"part": part, "table": weights, "vectors": vectors.buffer, "x": context.buffers.x},
                lambda step: (step.num_tokens, 1),
                {"TABLE": _TABLES[table.dtype.name]},
            )
        )
    return tuple(stages)
