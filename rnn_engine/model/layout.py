"""Describe a version's tensors, with letters for their dimensions, and check a model file's tensors against that."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import ml_dtypes
import numpy as np

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.source import TensorInfo, count, show, show_all
from rnn_engine.types import ModelShape

Sizes = Mapping[str, int]
"""The sizes of a model's dimensions: letter of the dimension, such as D -> size."""

_WEIGHT_DTYPES: Final = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32))

_ATTENTION = re.compile(r"moba\..*|blocks\.[0-9]+\.qkv\..*")
_BLOCK = re.compile(r"(?:\w+\.)?blocks\.([0-9]{1,6})\..*")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The description of one tensor of a model: its name, its dimensions as letters, and if it is required.

    ai00's `.st` files have some tensors under another name, and some with their last two dimensions swapped.
    """

    name: str
    dims: tuple[str, ...]
    required: bool = True
    ai00_name: str | None = None  # None: the same
    ai00_swaps: bool = False
    file_names: tuple[str, ...] = ()  # its names in other files, the one to write first; empty: `name`
    is_integer: bool = False  # holds whole numbers
    beside: str | None = None  # if the model has the tensor called so, this one is required, too
    file_axes: int = 0  # how many it has at least in a file that is written, the first ones of size 1

    @property
    def file_name(self) -> str:
        """The name with which the tensor is written to a file that has BlinkDL's names."""
        return self.file_names[0] if self.file_names else self.name


@dataclass(frozen=True, slots=True)
class Layout:
    """The description of one version of RWKV: its tensors, and a function from their sizes to a model's shape."""

    specs: Callable[[int], tuple[TensorSpec, ...]]  # number of layers -> every tensor
    make_shape: Callable[[int, Sizes], ModelShape]  # number of layers, sizes -> shape; raises ModelError
    unused: re.Pattern[str] | None = None  # names of tensors of files that the model runs without

    def select_used(self, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Return those of a file's `tensors` that the model does not run without."""
        unused = self.unused
        return {name: info for name, info in tensors.items() if unused is None or not unused.fullmatch(name)}

    def list_specs(self, names: Iterable[str]) -> tuple[TensorSpec, ...]:
        """Return the tensors of a model with as many layers as `names`. Raises ModelError for one without any."""
        return self.specs(_count_layers(names))


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model file's shape and tensors, which `check_tensors` has found to fit a version of RWKV."""

    shape: ModelShape
    tensors: Mapping[str, TensorInfo]  # in the layout's order, surplus axes of size 1 gone


def refuse_attention(names: Iterable[str]) -> None:
    """Raise ModelError if one of a file's tensors shows that some layers have softmax attention."""
    for name in names:
        if _ATTENTION.fullmatch(name):
            raise ModelError(has_attention(name))


def has_attention(name: str) -> str:
    """Return the message for a file whose tensor `name` belongs to softmax attention."""
    return (
        f"{show(name)} belongs to softmax attention, which some layers of RWKV-X, RWKV-7b and hxa07 have: their state "
        "grows with the text; expected a model with RWKV's time mixing in all layers"
    )


def check_tensors(layout: Layout, tensors: Mapping[str, TensorInfo]) -> CheckedModel:
    """Check a file's tensors against the description of an RWKV version; return the model's shape with the tensors.

    `tensors` has BlinkDL's names and orientation. Raises ModelError if tensors are missing, unknown, of the wrong type
    or of the wrong shape; the message lists them.
    """
    num_layers = _count_layers(tensors)
    specs = layout.specs(num_layers)
    _check_names(specs, tensors, num_layers)
    present = [spec for spec in specs if spec.name in tensors]
    squeezed = {spec.name: squeeze(tensors[spec.name], len(spec.dims)) for spec in present}
    check_dtypes({spec.name: squeezed[spec.name] for spec in present if not spec.is_integer})
    sizes = _read_sizes(present, squeezed)
    _check_shapes(present, squeezed, sizes)
    return CheckedModel(layout.make_shape(num_layers, sizes), squeezed)


def _count_layers(names: Iterable[str]) -> int:
    names = tuple(names)
    found = {int(match[1]) for name in names if (match := _BLOCK.fullmatch(name))}
    last = max(found, default=-1)
    if missing := [f"blocks.{layer}" for layer in range(last) if layer not in found]:
        lacks = f"{count(missing, 'layer')} missing below blocks.{last}: {show_all(missing)}"
        raise ModelError(f"{lacks}{_found_in_layer(f'blocks.{last}.', names)}")
    return last + 1


def _found_in_layer(layer: str, names: Iterable[str]) -> str:
    """Return what a message adds to name the tensors from which `layer`, such as "blocks.2.", was counted."""
    found = sorted(name for name in names if name.startswith(layer) or f".{layer}" in name)
    return f"; {layer[:-1]} is counted as a layer because the file has {show_all(found)}"


def check_none_missing(missing: Sequence[str], names: Collection[str], last_layer: str) -> None:
    """Raise ModelError if a file with the tensors `names` lacks those in `missing`.

    If it lacks most of `last_layer`, such as "blocks.2.", the message names the tensors from which that was counted.
    """
    if not missing:
        return
    lacks = sum(last_layer in name for name in missing)
    is_stray = lacks > sum(last_layer in name for name in names)
    because = _found_in_layer(last_layer, names) if is_stray else ""
    raise ModelError(f"{count(missing, 'tensor')} missing: {show_all(missing)}{because}")


def _check_names(specs: Iterable[TensorSpec], tensors: Iterable[str], num_layers: int) -> None:
    names = set(tensors)
    required = (spec for spec in specs if spec.required or spec.beside in names)
    missing = [spec.file_name for spec in required if spec.name not in names]
    check_none_missing(missing, names, f"blocks.{num_layers - 1}.")
    if unknown := sorted(names - {spec.name for spec in specs}):
        raise ModelError(
            f"{count(unknown, 'tensor')} that no served RWKV version has: {show_all(unknown)}; "
            "running the model without them would give wrong results"
        )


def check_dtypes(tensors: Mapping[str, TensorInfo]) -> None:
    """Raise ModelError if the elements of some tensors are of a type that no weights have."""
    wrong = [f"{show(name)} is {info.dtype.name}" for name, info in tensors.items() if info.dtype not in _WEIGHT_DTYPES]
    if wrong:
        allowed = ", ".join(dtype.name for dtype in _WEIGHT_DTYPES)
        raise ModelError(f"{count(wrong, 'tensor')} of the wrong element type: {show_all(wrong)}; expected {allowed}")


def _read_sizes(specs: Iterable[TensorSpec], tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Return the size of each dimension letter, as the first tensor with this dimension has it."""
    sizes: dict[str, int] = {}
    for spec in specs:
        shape = tensors[spec.name].shape
        if len(shape) == len(spec.dims):
            for letter, size in zip(spec.dims, shape, strict=True):
                sizes.setdefault(letter, size)
    return sizes


def _check_shapes(specs: Iterable[TensorSpec], tensors: Mapping[str, TensorInfo], sizes: Sizes) -> None:
    wrong = []
    for spec in specs:
        shape = tensors[spec.name].shape
        expected = [sizes.get(letter, letter) for letter in spec.dims]
        if list(shape) != expected or 0 in shape:
            wrong.append(f"{spec.name} is {list(shape)}, expected [{', '.join(map(str, expected))}]")
    if wrong:
        raise ModelError(f"{count(wrong, 'tensor')} of the wrong shape: {show_all(wrong)}")


def squeeze(info: TensorInfo, num_dims: int) -> TensorInfo:
    """Drop axes of size 1, the leading first, until `num_dims` are left: vectors may be [1, 1, D] or [H, 1, 1]."""
    shape = info.shape
    while len(shape) > num_dims and shape[0] == 1:
        shape = shape[1:]
    while len(shape) > num_dims and shape[-1] == 1:
        shape = shape[:-1]
    return replace(info, shape=shape)
