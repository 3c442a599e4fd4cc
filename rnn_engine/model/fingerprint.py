"""A short name for a model's weights: equal for equal weights, whatever file they lie in, and of no others.

It is a digest of every tensor's name, element type, shape and bytes, in the order of the names. A tensor's bytes are
digested by chunks, on all cores, and then the digests of the chunks. A matrix in blocks has the name of its format in
place of a type, and its codes and figures as bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised import Blocks

_CHUNK_BYTES: Final = 4 << 20
_SHOWN_DIGITS: Final = 32  # of the digest's 64


def fingerprint(version: str, names: Iterable[str], read: Callable[[str], NDArray[Any] | Blocks]) -> str:
    """Return the fingerprint, in hexadecimal digits, of the tensors that `read` gives for `names`.

    Blocks until all of them are read; holds one at a time.
    """
    digest = hashlib.sha256(version.encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in sorted(names):
            digest.update(_describe(name, read(name), pool))
    return digest.hexdigest()[:_SHOWN_DIGITS]


def with_settings(weights: str, settings: str) -> str:
    """Return the fingerprint of a model whose results also depend on `settings`, where there are any."""
    return hashlib.sha256(f"{weights} {settings}".encode()).hexdigest()[:_SHOWN_DIGITS] if settings else weights


def _describe(name: str, tensor: NDArray[Any] | Blocks, pool: ThreadPoolExecutor) -> bytes:
    """Return the tensor's name, type and shape, and the digests of its chunks."""
    kind, arrays = (
        (tensor.format.name, [tensor.codes, tensor.figures])
        if isinstance(tensor, Blocks)
        else (tensor.dtype.name, [tensor])
    )
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    chunks = [part[start : start + _CHUNK_BYTES] for part in parts for start in range(0, len(part), _CHUNK_BYTES)]
    return f"\n{name} {kind} {tensor.shape} ".encode() + b"".join(pool.map(_digest, chunks))


def _digest(chunk: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(chunk.data).digest()
