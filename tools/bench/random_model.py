"""Random RWKV-7 models with the shapes of published ones. A tensor's values are drawn each time it is read.

The weights are fast to make and of the right magnitude. The output of such a model is meaningless.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rnn_engine.versions.v7.layout import AdapterRanks, ShapeV7, list_tensors

HEAD_SIZE = 64
VOCAB_SIZE = 65536


def shape_of(num_layers: int, width: int, ranks: AdapterRanks) -> ShapeV7:
    """Return the shape of a published model from its number of layers, its width and its adapter ranks."""
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
    """A random model with f16 tensors. A tensor is drawn anew at each read, always with the same values."""

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
        """Return None: no tensor is quantised."""

    def block_type(self, _name: str) -> None:
        return None

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shape = self.shape
        sizes = {"D": shape.width, "V": shape.vocab_size, "F": shape.ffn_width}
        sizes |= {"H": shape.num_heads, "N": shape.head_size}
        sizes |= {f"R_{name}": rank for name, rank in asdict(shape.ranks).items()}
        specs = list_tensors(shape.num_layers)
        return {spec.name: tuple(sizes[dim] for dim in spec.dims) for spec in specs if spec.required}


def _draw(shape: tuple[int, ...], magnitude: float, seed: int) -> NDArray[np.float16]:
    """Return random f16 values near `magnitude`: a random sign and mantissa, and the same exponent for all."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16)
    exponent = int(np.floor(np.log2(magnitude))) + 15
    return ((bits & 0x83FF) | (exponent << 10)).view(np.float16)
