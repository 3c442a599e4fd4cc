"""LoRAs: small files that change a model's weights, merged tensor by tensor while the model is loaded.

A low-rank pair adds to a matrix W [out, in]: W += alpha / R * B A, with A [R, in] and B [out, R]. A plain tensor
replaces the model's own, or is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.model.fingerprint import fingerprint
from rnn_engine.model.layout import WEIGHT_DTYPES, squeeze
from rnn_engine.tensor_files.listing import count, show, show_all
from rnn_engine.tensor_files.source import TensorInfo, TensorSource
from rnn_engine.types import F32

Read: TypeAlias = Callable[[str], NDArray[Any]]

_ROWS: Final = 1024  # of a matrix that are changed at a time


@dataclass(frozen=True, slots=True)
class LoraChoice:
    """A LoRA to merge: ai00's or BlinkDL's file, or PEFT's folder, and its alpha; None is the one that PEFT's says."""

    path: Path
    alpha: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `FILE` or `FILE:ALPHA`. Raises InvalidRequestError."""
        path, colon, number = text.rpartition(":")
        try:
            alpha = float(number)
        except ValueError:
            return cls(Path(text))
        if not colon:
            return cls(Path(text))
        if not path or not math.isfinite(alpha):
            raise InvalidRequestError("lora", text, "FILE or FILE:ALPHA with a finite number")
        return cls(Path(path), alpha)


@dataclass(frozen=True, slots=True)
class Pair:
    """Adds `scale` times the product of two tensors of the file."""

    down: str  # A [R, in]
    up: str  # B [out, R]
    scale: float  # alpha / R
    down_swapped: bool = False  # A is stored as [in, R]
    transposes: bool = False  # the product is for the matrix [in, out]

    def merge(self, weight: F32, read: Read) -> None:
        down, up = read(self.down).astype(np.float32), read(self.up).astype(np.float32)
        if self.down_swapped:
            down = down.T
        if self.transposes:
            down, up = up.T, down.T
        for start in range(0, len(weight), _ROWS):
            rows = slice(start, start + _ROWS)
            weight[rows] += np.float32(self.scale) * (up[rows] @ down)


@dataclass(frozen=True, slots=True)
class Plain:
    """Adds `scale` times a tensor of the file, or replaces the model's by it."""

    name: str
    scale: float | None = None  # None replaces
    swapped: bool = False  # in its last two dimensions

    def merge(self, weight: F32, read: Read) -> None:
        stored = read(self.name)
        values = (stored.swapaxes(-1, -2) if self.swapped else stored).reshape(weight.shape)
        if self.scale is None:
            weight[...] = values
        else:
            weight += np.float32(self.scale) * values.astype(np.float32)


Change: TypeAlias = Pair | Plain


class Lora:
    """An open LoRA whose changes fit the model. Closes `source` with itself."""

    def __init__(self, choice: LoraChoice, source: TensorSource, changes: Mapping[str, Change]) -> None:
        """`changes` are by BlinkDL's name of the tensor that each is for."""
        self.choice = choice
        self._source = source
        self._changes = changes

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all its tensors, and of how much of each is added."""
        scales = " ".join(f"{name}={change.scale}" for name, change in sorted(self._changes.items()))
        return f"{fingerprint('lora', self._source.tensors, self._source.read)} {scales}"

    def changes(self, name: str) -> bool:
        """Whether it changes the tensor `name`."""
        return name in self._changes

    def merge(self, name: str, weight: F32) -> None:
        """Change the tensor `name` in place.

        Raises ModelError as `TensorSource.read` does, and where the result is not finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            self._changes[name].merge(weight, self._source.read)
        if not np.isfinite(weight).all():
            raise ModelError(f"{self.choice.path}: {name} is not finite once this LoRA is merged")

    def close(self) -> None:
        """Idempotent."""
        self._source.close()


def check_changes(
    changes: Mapping[str, Change], stored: Mapping[str, TensorInfo], model: Mapping[str, TensorInfo]
) -> None:
    """Raise ModelError unless all changes fit the model's tensors."""
    if not changes:
        raise ModelError("no tensor; expected low-rank pairs such as blocks.0.att.key.lora.0 and .lora.1")
    used = [name for change in changes.values() for name in _stored_names(change)]
    wrong = [f"{show(name)} is {stored[name].dtype.name}" for name in used if stored[name].dtype not in WEIGHT_DTYPES]
    if wrong:
        allowed = ", ".join(dtype.name for dtype in WEIGHT_DTYPES)
        raise ModelError(f"{count(wrong, 'tensor')} of the wrong element type: {show_all(wrong)}; expected {allowed}")
    for name, change in changes.items():
        if isinstance(change, Pair):
            _check_pair(name, change, stored, model[name])
        else:
            _check_plain(name, change, stored[change.name], model[name])


def refuse_unknown(names: Sequence[str]) -> None:
    """Raise ModelError that lists tensors which no tensor of the model takes, where there are any."""
    if names:
        raise ModelError(f"{count(names, 'tensor')} that the model has no place for: {show_all(sorted(names))}")


def pair_rank(name: str, info: TensorInfo, axis: int) -> int:
    """Return R, the size of a matrix's `axis`. Raises ModelError where it is no matrix or R is 0."""
    if len(info.shape) != 2 or 0 in info.shape:
        raise ModelError(f"{show(name)} is {list(info.shape)}; expected a matrix")
    return info.shape[axis]


def _stored_names(change: Change) -> tuple[str, ...]:
    return (change.down, change.up) if isinstance(change, Pair) else (change.name,)


def _check_pair(name: str, pair: Pair, stored: Mapping[str, TensorInfo], target: TensorInfo) -> None:
    down, up = stored[pair.down].shape, stored[pair.up].shape
    if len(target.shape) != 2:
        raise ModelError(f"{show(pair.down)} is for {name}, which is {list(target.shape)}; expected a matrix")
    outer, inner = reversed(target.shape) if pair.transposes else target.shape
    rank = down[-1] if pair.down_swapped else down[0]
    if down != ((inner, rank) if pair.down_swapped else (rank, inner)) or up != (outer, rank):
        wanted = f"[{inner}, R]" if pair.down_swapped else f"[R, {inner}]"
        raise ModelError(
            f"{show(pair.down)} is {list(down)} and {show(pair.up)} is {list(up)}; expected {wanted} and "
            f"[{outer}, R] with one rank R"
        )


def _check_plain(name: str, plain: Plain, info: TensorInfo, target: TensorInfo) -> None:
    shape = squeeze(info, len(target.shape)).shape
    oriented = (*shape[:-2], shape[-1], shape[-2]) if plain.swapped and len(shape) >= 2 else shape
    if oriented != target.shape:
        raise ModelError(f"{show(plain.name)} is {list(info.shape)}; expected {list(target.shape)}, as {name} is")
