"""Folders of flash-linear-attention, which Hugging Face's transformers load: config.json and one safetensors file."""

from __future__ import annotations

import json
from math import isclose
from pathlib import Path
from typing import Any, Final

from rnn_engine.atomic_file import atomic_file
from rnn_engine.convert.source import Source
from rnn_engine.errors import ModelError
from rnn_engine.model.fla_names import fla_name, is_transposed
from rnn_engine.model.layout import TensorSpec
from rnn_engine.tensor_files.entry import TensorEntry
from rnn_engine.tensor_files.safetensors_writer import widest_first, write_safetensors
from rnn_engine.versions.v7.shape import ShapeV7
from rnn_engine.versions.v7_deep_embed.shape import ShapeV7DeepEmbed

_NORM_EPSILON: Final = 1e-5
_THREE_DIMENSIONS: Final = (".att.x_r", ".att.x_w", ".att.x_k", ".att.x_v", ".att.x_a", ".att.x_g")


def write_fla(folder: Path, source: Source) -> None:
    """Write into an empty folder.

    Raises ModelError for a version that flash-linear-attention's names do not cover, and for another epsilon of the
    group norm than its own, 1e-5 times the size of a head.
    """
    shape = source.shape
    if not isinstance(shape, ShapeV7) or isinstance(shape, ShapeV7DeepEmbed):
        raise ModelError(f"a folder of flash-linear-attention can't hold RWKV {shape.version}; expected v7")
    epsilon = _NORM_EPSILON * shape.head_size
    if not isclose(shape.group_norm_epsilon, epsilon, rel_tol=1e-6):
        raise ModelError(
            f"the group norm of heads of size {shape.head_size} has the epsilon {shape.group_norm_epsilon:g}; "
            f"expected {epsilon:g}, which flash-linear-attention has"
        )
    if lost := [spec.name for spec in source.specs if spec.name.endswith(".time_state")]:
        raise ModelError(f"flash-linear-attention has no place for {lost[0]}; expected a model without a tuned state")
    entries = [_entry(source, spec) for spec in source.specs if not _is_unused(spec)]
    with atomic_file(folder / "config.json") as file:
        file.write(json.dumps(_config(shape, source), indent=2).encode() + b"\n")
    with atomic_file(folder / "model.safetensors") as file:
        write_safetensors(file, widest_first(entries), {"format": "pt"})


def _is_unused(spec: TensorSpec) -> bool:
    """Whether this is of layer 0's value residual, which the layer has no use for and fla no module."""
    return spec.name in {f"blocks.0.att.v{number}" for number in "012"}


def _entry(source: Source, spec: TensorSpec) -> TensorEntry:
    name = fla_name(spec.name)
    if is_transposed(spec.name):
        return source.swapped(spec, name)
    if spec.name.endswith(_THREE_DIMENSIONS):
        shape = (1, 1, source.shape.width)
        return source.entry(spec, name, shape=shape, transform=lambda tensor: tensor.reshape(shape))
    return source.entry(spec, name)


def _config(shape: ShapeV7, source: Source) -> dict[str, Any]:
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "a_low_rank_dim": shape.ranks.a,
        "attn": None,
        "attn_mode": "chunk",
        "bos_token_id": 0,
        "decay_low_rank_dim": shape.ranks.w,
        "eos_token_id": 0,
        "fuse_norm": False,
        "gate_low_rank_dim": shape.ranks.g,
        "head_dim": shape.head_size,
        "hidden_act": "sqrelu",
        "hidden_ratio": shape.ffn_width / shape.width,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn_width,
        "max_position_embeddings": 2048,
        "norm_bias": True,
        "norm_eps": _NORM_EPSILON,
        "norm_first": True,
        "num_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "tie_word_embeddings": False,
        "torch_dtype": source.dtype(next(spec for spec in source.specs if spec.name == "head.weight")).name,
        "use_cache": True,
        "v_low_rank_dim": shape.ranks.v,
        "value_dim": [shape.width] * shape.num_layers,
        "vocab_size": shape.vocab_size,
    }
