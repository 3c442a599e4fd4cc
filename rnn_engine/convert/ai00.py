"""ai00's `.st` files: BlinkDL's tensors in f16, some of them under other names and turned; and what it calls sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final, Literal

import numpy as np
from typing_extensions import TypedDict

from rnn_engine.convert.source import F16, Source, is_matrix
from rnn_engine.errors import ModelError
from rnn_engine.model.layout import TensorSpec
from rnn_engine.tensor_files.entry import TensorEntry
from rnn_engine.tensor_files.safetensors_writer import write_safetensors
from rnn_engine.types import ModelShape
from rnn_engine.versions.v5 import ShapeV5
from rnn_engine.versions.v6.shape import ShapeV6
from rnn_engine.versions.v7.shape import ShapeV7

_VERSIONS: Final = ("v4", "v5.1", "v5.2", "v6", "v7")


class Ai00ModelInfo(TypedDict):
    """A model's sizes. `custom` holds the sizes of its low-rank adapters under its version."""

    version: str
    num_layer: int
    num_emb: int
    num_hidden: int
    num_vocab: int
    num_head: int
    custom: dict[str, dict[str, int]] | Literal["None"]


def model_info(shape: ModelShape) -> Ai00ModelInfo:
    """Return the sizes of a model under ai00's names; a variant that it does not know is told as its version."""
    custom: dict[str, dict[str, int]] | Literal["None"] = "None"
    match shape:
        case ShapeV7():
            ranks = shape.ranks
            custom = {"V7": {"w": ranks.w, "a": ranks.a, "g": ranks.g, "v": ranks.v}}
        case ShapeV6():
            custom = {"V6": {"time_mix": shape.mix_rank, "time_decay": shape.decay_rank}}
    return {
        "version": shape.version[:2].upper(),
        "num_layer": shape.num_layers,
        "num_emb": shape.width,
        "num_hidden": shape.ffn_width,
        "num_vocab": shape.vocab_size,
        "num_head": shape.sizes.get("num_heads", 1),
        "custom": custom,
    }


def write_st(file: IO[bytes], source: Source) -> None:
    """Write an `.st` file. Raises ModelError for a version that ai00 does not know, and for weights in another type."""
    check_ai00(source, "an .st file")
    write_safetensors(file, list(_entries(source)), {})


def check_ai00(source: Source, file: str) -> None:
    """Raise ModelError for a version that ai00 does not know, and for weights other than f16 in a kind of its files."""
    if source.shape.version not in _VERSIONS:
        raise ModelError(f"ai00 does not run RWKV {source.shape.version}; expected one of {', '.join(_VERSIONS)}")
    for spec in source.specs:
        chosen = source.format_of(spec.name) if is_matrix(spec) else None
        if chosen is not None and chosen.name != "f16":
            raise ModelError(f"{spec.name} can't be {chosen.name} in {file}; expected --weights f16")


def _entries(source: Source) -> Iterator[TensorEntry]:
    for spec in source.specs:
        name = spec.ai00_name or spec.name
        if isinstance(source.shape, ShapeV5) and spec.dims == ("H",):
            yield _repeated(source, spec, source.shape)
        elif spec.ai00_swaps:
            yield source.swapped(spec, name, dtype=F16)
        else:
            yield source.entry(spec, name, dtype=F16)


def _repeated(source: Source, spec: TensorSpec, shape: ShapeV5) -> TensorEntry:
    """Return a number a head as one a channel, which makes RWKV-5.1 what ai00 knows as RWKV-5."""
    size = (shape.num_heads, shape.head_size)
    return source.entry(
        spec,
        spec.name.replace("time_faaaa", "time_first"),
        dtype=F16,
        shape=size,
        transform=lambda tensor: np.broadcast_to(tensor[:, np.newaxis], size),
    )
