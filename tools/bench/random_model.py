"""RWKV-7 models of published shapes with random weights, drawn tensor by tensor when asked for.

The weights are fast to make and of the right magnitude. The output of such a model is meaningless.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rnn_engine.versions.v7.layout import AdapterRanks, ShapeV7

HEAD_SIZE = 64
VOCAB_SIZE = 65536


def shape_of(num_layers: int, width: int, ranks: AdapterRanks) -> ShapeV7:
    """Return a published model's shape, given the sizes in which such models differ."""
    return ShapeV7(
        num_layers=num_layers,
        width=width,
        num_heads=width // HEAD_SIZE,
        head_size=HEAD_SIZE,
        ffn_width=4 * width,
        vocab_size=VOCAB_SIZE,
        ranks=ranks,
    )


SHAPES = {
    "0.1B": shape_of(12, 768, AdapterRanks(w=64, a=64, v=32, g=128)),
    "0.4B": shape_of(24, 1024, AdapterRanks(w=64, a=64, v=32, g=128)),
    "1.5B": shape_of(24, 2048, AdapterRanks(w=96, a=96, v=64, g=256)),
    "2.9B": shape_of(32, 2560, AdapterRanks(w=96, a=96, v=64, g=320)),
}


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A model whose tensors are f16. Each is drawn anew at every read, with the same values."""

    shape: ShapeV7

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes())

    def has(self, name: str) -> bool:
        return name in self._shapes()

    def tensor(self, name: str) -> NDArray[np.float16]:
        shape = self._shapes()[name]
        if name.endswith(("ln0.weight", "ln1.weight", "ln2.weight", "ln_x.weight", "ln_out.weight")):
            return np.ones(shape, np.float16)
        magnitude = shape[-1] ** -0.5 if name.endswith(".weight") and len(shape) == 2 else 0.25
        return _draw(shape, magnitude, seed=zlib.crc32(name.encode()))

    def blocks(self, _name: str) -> None:
        """Return None, since no tensor is quantised in blocks."""

    def block_type(self, _name: str) -> None:
        return None

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        width, ffn, vocab = self.shape.width, self.shape.ffn_width, self.shape.vocab_size
        shapes: dict[str, tuple[int, ...]] = {"emb.weight": (vocab, width), "head.weight": (vocab, width)}
        norms = ["blocks.0.ln0", "ln_out"]
        for layer in range(self.shape.num_layers):
            block = f"blocks.{layer}"
            norms += [f"{block}.ln1", f"{block}.ln2", f"{block}.att.ln_x"]
            vectors = ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "w0", "a0", "v0", "k_k", "k_a"]
            shapes |= {f"{block}.att.{name}": (width,) for name in vectors}
            shapes[f"{block}.ffn.x_k"] = (width,)
            shapes[f"{block}.att.r_k"] = (self.shape.num_heads, self.shape.head_size)
            for name in ("receptance", "key", "value", "output"):
                shapes[f"{block}.att.{name}.weight"] = (width, width)
            for name in "wavg":
                rank = getattr(self.shape.ranks, name)
                shapes[f"{block}.att.{name}1"] = (width, rank)
                shapes[f"{block}.att.{name}2"] = (rank, width)
            shapes[f"{block}.ffn.key.weight"] = (ffn, width)
            shapes[f"{block}.ffn.value.weight"] = (width, ffn)
        return shapes | {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}


def _draw(shape: tuple[int, ...], magnitude: float, seed: int) -> NDArray[np.float16]:
    """Draw signs and mantissas under one exponent: values of 1 to 2 times a power of two, near `magnitude`."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16)
    exponent = int(np.floor(np.log2(magnitude))) + 15
    return ((bits & 0x83FF) | (exponent << 10)).view(np.float16)
