"""A short name for a model's weights: equal for equal weights, whatever file they lie in, and cheap to work out.

It is a digest of every tensor's name, shape, element type and a few of its elements, spread evenly. It tells trained
models apart; it is no guard against someone who changes the elements in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SAMPLES: Final = 16  # elements a tensor
_DIGEST_BYTES: Final = 16


def fingerprint(version: str, names: Iterable[str], read: Callable[[str], NDArray[Any]]) -> str:
    """The fingerprint, in hexadecimal digits, of the tensors that `read` gives for `names`."""
    digest = hashlib.blake2b(version.encode(), digest_size=_DIGEST_BYTES)
    for name in sorted(names):
        digest.update(_describe(name, read(name)))  # one tensor at a time is held
    return digest.hexdigest()


def _describe(name: str, tensor: NDArray[Any]) -> bytes:
    """The tensor's name, type and shape, and elements from its first to its last at even distances."""
    places = np.linspace(0, tensor.size - 1, min(_SAMPLES, tensor.size)).astype(np.int64)
    sample = tensor[np.unravel_index(places, tensor.shape)]
    return f"\n{name} {tensor.dtype.name} {tensor.shape} ".encode() + sample.tobytes()
