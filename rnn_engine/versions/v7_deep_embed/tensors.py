"""The tensors that DeepEmbed adds to RWKV-7's, in BlinkDL's names and orientation.

D width, V vocabulary, F ffn width, S the side of each token's matrix, E its size S * S.
"""

from __future__ import annotations

from rnn_engine.model.layout import TensorSpec
from rnn_engine.versions import v7


def list_tensors(num_layers: int) -> tuple[TensorSpec, ...]:
    """Return every tensor of a model with so many layers."""
    added = [
        spec
        for block in (f"blocks.{layer}.ffn" for layer in range(num_layers))
        for spec in (
            TensorSpec(f"{block}.s_emb.weight", ("V", "E")),
            TensorSpec(f"{block}.s_emb_x.weight", ("E", "D")),
            TensorSpec(f"{block}.s1", ("D", "S")),
            TensorSpec(f"{block}.s2", ("S", "F")),
            TensorSpec(f"{block}.s0", ("F",)),
        )
    ]
    return (*v7.list_tensors(num_layers), *added)
