"""Find the convention that a file's tensors were saved in, and translate it to BlinkDL's names and orientation.

Two conventions are known. BlinkDL's own is the identity. ai00's `.st` has the same names for RWKV-7, and stores the
low-rank adapters and the tuned initial state with their last two dimensions swapped. Nothing in such a file says so,
but the shapes do: an adapter's outer dimension is the model's width. The adapters that are not square, of any layer,
settle it for the file. Where every adapter is square (each R equals D) the shapes say nothing; then a file whose name
ends in `.st` and whose tensors are all f16, which is what ai00's converter writes, is taken for ai00's, and any other
for BlinkDL's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rnn_engine.model.source import TensorInfo

Tensors = Mapping[str, TensorInfo]

_ADAPTER = re.compile(r"blocks\.\d+\.att\.[wavg][12]")
_SWAPPED_BY_AI00 = re.compile(r"blocks\.\d+\.att\.([wavg][12]|time_state)")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor of the model is kept: its name in the file, and whether its last two dimensions are swapped."""

    name: str
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class Convention:
    """A way of naming and orienting tensors: `translate` maps BlinkDL's name of each to where it is stored."""

    name: str
    matches: Callable[[Path, Tensors], bool]
    translate: Callable[[Tensors], dict[str, StoredTensor]]


def find_convention(path: Path, tensors: Tensors) -> Convention:
    """Return the convention in which the file's tensors were saved; BlinkDL's where no other is recognised."""
    return next(convention for convention in _CONVENTIONS if convention.matches(path, tensors))


def _is_ai00(path: Path, tensors: Tensors) -> bool:
    votes = [vote for name, info in tensors.items() if (vote := _swap_vote(name, info, _width(tensors))) is not None]
    if votes:
        return 2 * sum(votes) > len(votes)  # the others are then refused for their shapes
    adapters = [name for name in tensors if _ADAPTER.fullmatch(name)]
    all_f16 = all(info.dtype == np.float16 for info in tensors.values())
    return bool(adapters) and path.suffix == ".st" and all_f16


def _swap_vote(name: str, info: TensorInfo, width: int | None) -> bool | None:
    """Return whether an adapter's shape shows it swapped; None where it is none or its shape does not show it."""
    if not _ADAPTER.fullmatch(name) or len(info.shape) < 2:
        return None
    rows, columns = info.shape[-2:]
    if (rows == width) == (columns == width):
        return None
    is_first = name.endswith("1")  # x1 is [D, R] and x2 is [R, D]
    return (columns if is_first else rows) == width


def _width(tensors: Tensors) -> int | None:
    """Return D, the second dimension of the embedding."""
    embedding = tensors.get("emb.weight")
    return embedding.shape[-1] if embedding is not None and embedding.shape else None


def _translate_ai00(tensors: Tensors) -> dict[str, StoredTensor]:
    return {name: StoredTensor(name, _SWAPPED_BY_AI00.fullmatch(name) is not None) for name in tensors}


def _translate_blinkdl(tensors: Tensors) -> dict[str, StoredTensor]:
    return {name: StoredTensor(name) for name in tensors}


_CONVENTIONS: Final = (
    Convention("ai00", _is_ai00, _translate_ai00),
    Convention("blinkdl", lambda _path, _tensors: True, _translate_blinkdl),
)
