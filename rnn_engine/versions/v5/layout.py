"""The sizes of an RWKV-5 model, and the list of its tensors in BlinkDL's names and orientation.

Shapes: D width, H heads, N head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Layout, Sizes, TensorSpec
from rnn_engine.reference import Array
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.versions.shared.layout import (
    HeadsShape,
    check_heads,
    list_channel_mix,
    list_model,
    list_norm,
    list_projections,
    list_static_mixes,
    tuned_state,
)
from rnn_engine.versions.shared.reference import double_exp_decay

VersionV5: TypeAlias = Literal["v5.0", "v5.1", "v5.2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV5(HeadsShape):
    """The sizes of an RWKV-5 model and its version, 5.0 to 5.2."""

    version: VersionV5

    @property
    def has_gate(self) -> bool:
        return self.version != "v5.0"


def make_shape(num_layers: int, sizes: Sizes, version: VersionV5) -> ShapeV5:
    """Return the shape for the sizes of tensor dimensions. Raises ModelError if they contradict each other."""
    width, num_heads = sizes["D"], sizes["H"]
    if "N" in sizes:
        check_heads("blocks.0.att.time_decay", num_heads, sizes["N"], width)
    elif width % num_heads:
        raise ModelError(
            f"blocks.0.att.time_decay has {num_heads} heads; expected a divisor of {width}, the model's width"
        )
    return ShapeV5(
        version=version,
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        head_size=width // num_heads,
        ffn_width=sizes["F"],
        vocab_size=sizes["V"],
    )


def make_decay(lookup: Callable[[str], Array], shape: ShapeV5) -> Array:
    """Return the factors [H, N] of the state's key channels, from a layer's tensors by name."""
    return _for_each_channel(double_exp_decay(lookup("att.time_decay")), shape)


def make_bonus(lookup: Callable[[str], Array], shape: ShapeV5) -> Array:
    """Return the bonus u [H, N] of an RWKV-5 layer: the weight of the current token in the output of the recurrence."""
    u = np.exp(lookup("att.time_first")) if shape.version == "v5.0" else lookup("att.time_faaaa")
    return _for_each_channel(u, shape)


def _for_each_channel(values: Array, shape: ShapeV5) -> Array:
    """Return `values`, which holds one number per head [H] or per channel [H, N], as an array [H, N]."""
    return np.broadcast_to(values.reshape(shape.num_heads, -1), (shape.num_heads, shape.head_size))


# RWKV-5's tensors, in BlinkDL's names and orientation. D width, H heads, N head size.
#
# 5.0 and 5.1 have one decay and one bonus a head. ai00's files repeat those of 5.1 for each channel, so that they count
# as 5.2. A bonus called `time_first` is the logarithm of the real one, except in ai00's files of 5.2.


def find_version(tensors: Mapping[str, TensorInfo]) -> VersionV5:
    """Return the minor version of RWKV-5, such as `v5.2`, of a model file with the tensors `tensors`."""
    if "blocks.0.att.gate.weight" not in tensors:
        return "v5.0"
    decay = tensors.get("blocks.0.att.time_decay")
    is_one_a_head = decay is not None and (len(decay.shape) == 1 or decay.shape[1] == 1)
    return "v5.1" if is_one_a_head else "v5.2"


def make_layout(version: VersionV5) -> Layout:
    """Return the tensor layout of models of the RWKV-5 version `version`, such as `v5.2`."""
    list_layer = partial(_list_layer, version=version)
    return Layout(partial(list_model, list_layer), partial(make_shape, version=version))


def _list_layer(layer: int, version: VersionV5) -> Iterator[TensorSpec]:
    block = f"blocks.{layer}"
    per_head = ("H", "N") if version == "v5.2" else ("H",)
    yield from list_norm(f"{block}.ln1")
    yield from list_static_mixes(f"{block}.att", "kvr" if version == "v5.0" else "kvrg")
    yield TensorSpec(f"{block}.att.time_decay", per_head)
    yield _bonus(f"{block}.att", per_head, version)
    gate = () if version == "v5.0" else ("gate",)
    yield from list_projections(block, "receptance", "key", "value", *gate, "output")
    yield from list_norm(f"{block}.att.ln_x")
    yield tuned_state(block)
    yield from list_norm(f"{block}.ln2")
    yield from list_static_mixes(f"{block}.ffn", "kr")
    yield from list_channel_mix(block)


def _bonus(part: str, dims: tuple[str, ...], version: VersionV5) -> TensorSpec:
    match version:
        case "v5.0":
            return TensorSpec(f"{part}.time_first", dims)
        case "v5.1":
            return TensorSpec(f"{part}.time_faaaa", dims)
        case "v5.2":
            return TensorSpec(f"{part}.time_faaaa", dims, ai00_name=f"{part}.time_first")
