"""The forward pass of RWKV-7 with DeepEmbed in numpy, in f32 or f64.

Shapes: T tokens of all runs, D width, F ffn width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rnn_engine.reference import Array, Block, PackedRuns, Weights, embed
from rnn_engine.versions.shared.reference import run_blocks
from rnn_engine.versions.v7.reference import TimeMix
from rnn_engine.versions.v7_deep_embed.layout import SIDE, ShapeV7DeepEmbed


def run_layers(
    weights: Weights, ids: Array, lengths: Sequence[int] | PackedRuns, states: Mapping[str, Array]
) -> tuple[Array, dict[str, list[Array]]]:
    """Run B sequences through all layers of RWKV-7 with DeepEmbed; see `rnn_engine.reference.RunLayers`."""
    assert isinstance(weights.shape, ShapeV7DeepEmbed)
    embedded = weights.carried[2] if weights.carried else embed(weights, ids)
    after = run_blocks(weights, ids, lengths, states, TimeMix(weights), partial(channel_mix, ids, embedded))
    if not weights.carried:
        weights.keep(embedded)
    return after


def channel_mix(ids: Array, embedded: Array, block: Block, x: Array, previous: Array) -> Array:
    """Compute the channel mix of RWKV-7 with DeepEmbed, token shift included.

    ids: [T] token ids; embedded: [T, D] the first layer's input; x, previous: [T, D] -> [T, D].
    """
    k = block.matmul(x + (previous - x) * block("ffn.x_k"), "ffn.key.weight")
    k = np.square(np.maximum(k, 0))
    matrix = block.rows("ffn.s_emb.weight", ids) + block.matmul(embedded, "ffn.s_emb_x.weight")  # [T, S * S]
    inner = block.project(x, "ffn.s1")[:, np.newaxis] @ matrix.reshape(-1, SIDE, SIDE)  # [T, 1, S]
    scale = block.project(inner[:, 0], "ffn.s2") + block("ffn.s0")
    return block.matmul(k * scale, "ffn.value.weight")
