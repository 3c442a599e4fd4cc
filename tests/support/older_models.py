"""Shapes and random weights of the versions before RWKV-7, and of those in the body of a Qwen2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from rnn_engine.model.layout import TensorSpec
from rnn_engine.types import ModelShape
from rnn_engine.versions.qwen2 import ShapeV6Qwen2, ShapeV7Qwen2
from rnn_engine.versions.table import VERSIONS
from rnn_engine.versions.v4.layout import ShapeV4
from rnn_engine.versions.v5 import ShapeV5, VersionV5
from rnn_engine.versions.v6.layout import NUM_MIXES, ShapeV6
from rnn_engine.versions.v7.layout import AdapterRanks

F64 = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], F64]


def tiny_v6(
    layers: int = 2,
    width: int = 64,
    head_size: int = 16,
    ffn: int = 100,
    vocab: int = 96,
    mix_rank: int = 6,
    decay_rank: int = 9,
) -> ShapeV6:
    """Return a shape small enough for any test."""
    return ShapeV6(
        num_layers=layers,
        width=width,
        num_heads=width // head_size,
        head_size=head_size,
        ffn_width=ffn,
        vocab_size=vocab,
        mix_rank=mix_rank,
        decay_rank=decay_rank,
    )


def tiny_v6_qwen2(
    layers: int = 2,
    width: int = 64,
    head_size: int = 16,
    kv_heads: int = 2,
    ffn: int = 53,
    vocab: int = 96,
    mix_rank: int = 6,
    decay_rank: int = 9,
) -> ShapeV6Qwen2:
    """Return a shape small enough for any test."""
    return ShapeV6Qwen2(
        num_layers=layers,
        width=width,
        num_heads=width // head_size,
        num_kv_heads=kv_heads,
        head_size=head_size,
        ffn_width=ffn,
        vocab_size=vocab,
        mix_rank=mix_rank,
        decay_rank=decay_rank,
    )


def tiny_v7_qwen2(
    layers: int = 2, width: int = 64, head_size: int = 16, ffn: int = 53, vocab: int = 96, gate_rank: int = 11
) -> ShapeV7Qwen2:
    """Return a shape small enough for any test; a model without a gate has the `gate_rank` 0."""
    return ShapeV7Qwen2(
        num_layers=layers,
        width=width,
        num_heads=width // head_size,
        head_size=head_size,
        ffn_width=ffn,
        vocab_size=vocab,
        ranks=AdapterRanks(w=9, a=7, v=5, g=gate_rank),
    )


def tiny_v5(
    version: VersionV5 = "v5.2", layers: int = 2, width: int = 64, head_size: int = 16, ffn: int = 100, vocab: int = 96
) -> ShapeV5:
    """Return a shape small enough for any test."""
    return ShapeV5(
        version=version,
        num_layers=layers,
        width=width,
        num_heads=width // head_size,
        head_size=head_size,
        ffn_width=ffn,
        vocab_size=vocab,
    )


def tiny_v4(layers: int = 2, width: int = 64, ffn: int = 100, vocab: int = 96) -> ShapeV4:
    """Return a shape small enough for any test."""
    return ShapeV4(num_layers=layers, width=width, ffn_width=ffn, vocab_size=vocab)


OLDER_SHAPES: tuple[ModelShape, ...] = (tiny_v6(), *(tiny_v5(v) for v in get_args(VersionV5)), tiny_v4())
"""A shape of each version, with a vocabulary of 96."""

QWEN2_SHAPES: tuple[ModelShape, ...] = (tiny_v6_qwen2(), tiny_v7_qwen2())
"""The same for the versions in the body of a Qwen2."""


def draw_older(
    shape: ModelShape, generator: np.random.Generator, *, optional: bool = True
) -> Iterator[tuple[str, F64]]:
    """Yield each tensor of a model of `shape` with its name: without tuned states, and perhaps without biases and such.

    A model with a gate has one even if it has nothing else that is `optional`.
    """
    letters = _dimensions(shape)
    for spec in VERSIONS.get(shape.version).layout.specs(shape.num_layers):
        is_gate = re.search(r"\.(x_g|g[12])$", spec.name) is not None
        has = letters.get("R_g") != 0 if is_gate else optional and spec.beside is not None
        if spec.required or has:
            yield spec.name, _draw(spec, tuple(letters[letter] for letter in spec.dims), generator)


def _dimensions(shape: ModelShape) -> dict[str, int]:
    """Return the size of each dimension letter of the version's layout."""
    sizes = {"D": shape.width, "F": shape.sizes["ffn_width"], "V": shape.vocab_size}
    match shape:
        case ShapeV6():
            ranks = {"R_mixes": NUM_MIXES * shape.mix_rank, "R_mix": shape.mix_rank, "R_decay": shape.decay_rank}
            kv_width = shape.width // shape.heads_a_kv_head
            sizes |= {"H": shape.num_heads, "N": shape.head_size, "M": NUM_MIXES, "K": kv_width} | ranks
        case ShapeV7Qwen2():
            ranks = {f"R_{kind}": getattr(shape.ranks, kind) for kind in "wavg"}
            sizes |= {"H": shape.num_heads, "N": shape.head_size} | ranks
        case ShapeV5():
            sizes |= {"H": shape.num_heads, "N": shape.head_size}
    return sizes


def _matrix(generator: np.random.Generator, size: tuple[int, ...]) -> F64:
    """Return a matrix [out, in] that gives outputs of unit size for inputs of unit size."""
    return generator.normal(0.0, size[-1] ** -0.5, size)


def _adapter(generator: np.random.Generator, size: tuple[int, ...]) -> F64:
    """Return matrices [..., in, out] of the same magnitude as `_matrix`."""
    return generator.normal(0.0, size[-2] ** -0.5, size)


def _spread(low: float, high: float) -> Draw:
    """Return a draw of evenly spaced values from `low` to `high`, in random order."""
    return lambda generator, size: generator.permutation(np.linspace(low, high, int(np.prod(size)))).reshape(size)


_RULES: tuple[tuple[str, Draw], ...] = (  # by a name's end; the first that fits
    (r"emb\.weight", lambda generator, size: generator.normal(0.0, 0.05, size)),  # so small that eps matters
    (r"head\.weight", lambda generator, size: 4.0 * _matrix(generator, size)),
    (r"ln\w+\.weight", lambda generator, size: generator.normal(1.0, 0.2, size)),
    (r"ln\w+\.bias", lambda generator, size: generator.normal(0.0, 0.1, size)),
    (r"time_maa_w2", lambda generator, size: 0.3 * _adapter(generator, size)),
    (r"time_(maa|decay)_w[12]", _adapter),
    (r"time_(maa|mix)_\w", lambda generator, size: generator.uniform(0.0, 1.0, size)),
    (r"time_decay", _spread(-6.0, 0.5)),
    (r"w0", _spread(-6.0, 2.0)),
    (r"[av]0", lambda generator, size: generator.normal(0.0, 1.0, size)),
    (r"[wavg][12]", _adapter),
    (r"x_\w", lambda generator, size: generator.uniform(0.0, 1.0, size)),
    (r"k_[ka]", lambda generator, size: generator.normal(0.9, 0.1, size)),
    (r"r_k|bias", lambda generator, size: generator.normal(0.0, 0.3, size)),
    (r"time_(first|faaaa)", lambda generator, size: generator.normal(0.0, 0.5, size)),
    (r"weight", _matrix),
)


def _draw(spec: TensorSpec, size: tuple[int, ...], generator: np.random.Generator) -> F64:
    return next(draw for pattern, draw in _RULES if re.search(rf"(^|\.){pattern}$", spec.name))(generator, size)
