"""Models with random weights: small, from a fixed seed, in memory or as a safetensors file.

The magnitudes are those of trained models: decays from nearly 0.55 to nearly 1, activations near one, and logits that
spread over several units. So a wrong sum shows, and the greatest logit is clearly greater than the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors.numpy import save_file

from rnn_engine.types import ModelShape
from rnn_engine.versions.qwen2 import ShapeV7Qwen2
from rnn_engine.versions.table import VERSIONS
from rnn_engine.versions.v7.layout import AdapterRanks, AnyShapeV7, ShapeV7
from rnn_engine.versions.v7_deep_embed.layout import MATRIX_SIZE, SIDE, ShapeV7DeepEmbed
from rnn_engine.versions.v7_retrieval import TASKS, ShapeV7Embedding, ShapeV7Reranker
from tests.support.older_models import draw_older

FileDtype = Literal["f16", "bf16", "f32"]
Convention = Literal["blinkdl", "ai00"]

_MIX_OR_BIAS = re.compile(r"blocks\.\d+\.(att|ffn)\.(x_\w|[wav]0|k_[ka]|time_\w+)")
_FILE_DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


@dataclass(frozen=True, slots=True)
class TensorModel:
    """A model in memory, with the part of a model file's interface that a forward pass needs."""

    shape: ModelShape
    tensors: dict[str, NDArray[Any]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> NDArray[Any]:
        return self.tensors[name]

    def block_type(self, name: str) -> None:
        return None

    def matrix(self, name: str, *, transposed: bool = False) -> NDArray[Any]:
        return self.tensors[name].T if transposed else self.tensors[name]


def tiny_shape(
    layers: int = 2,
    width: int = 64,
    head_size: int = 16,
    ffn: int | None = None,
    vocab: int = 96,
    ranks: AdapterRanks | None = None,
) -> ShapeV7:
    """Return a shape small enough for any test. `ffn` is four times the width unless given."""
    return ShapeV7(
        num_layers=layers,
        width=width,
        num_heads=width // head_size,
        head_size=head_size,
        ffn_width=4 * width if ffn is None else ffn,
        vocab_size=vocab,
        ranks=AdapterRanks(w=16, a=12, v=8, g=24) if ranks is None else ranks,
    )


def deep_embedded(shape: ShapeV7) -> ShapeV7DeepEmbed:
    """Return a shape of the same sizes with DeepEmbed."""
    return _as_kind(ShapeV7DeepEmbed, shape)


def embedding_shape(shape: ShapeV7) -> ShapeV7Embedding:
    """Return a shape of the same sizes of an EmbeddingRWKV."""
    return _as_kind(ShapeV7Embedding, shape)


def reranker_shape(shape: ShapeV7) -> ShapeV7Reranker:
    """Return a shape of the same sizes, except for the vocabulary, of a reranker."""
    return replace(_as_kind(ShapeV7Reranker, shape), vocab_size=1)


def _as_kind(kind: type[AnyShapeV7], shape: ShapeV7) -> AnyShapeV7:
    sizes = {each.name: getattr(shape, each.name) for each in fields(ShapeV7) if each.init}
    return kind(**sizes)


def random_model(
    shape: ModelShape,
    seed: int,
    dtype: DTypeLike = np.float32,
    *,
    layer0_v: bool = True,
    bits: int = 8,
    optional: bool = True,
) -> TensorModel:
    """Return a model with random weights as arrays of `dtype`. A seed gives the same numbers in every dtype.

    Values have `bits` significant bits: 8 lose nothing in f16, bf16 and f32, 11 lose nothing in f16 and f32.
    `layer0_v=False` leaves out layer 0's v0, v1, v2, as some published files of RWKV-7 do. For `optional` see
    `draw_older`.
    """
    generator = np.random.default_rng(seed)
    tensors = {}
    drawn = draw_older(shape, generator, optional=optional)
    if isinstance(shape, ShapeV7) and not isinstance(shape, ShapeV7Qwen2):
        drawn = _draw_v7(shape, generator)
    for name, values in drawn:
        if layer0_v or name not in {f"blocks.0.att.v{i}" for i in range(3)}:
            tensors[name] = _round_to_f16(values, bits).astype(dtype)
    return TensorModel(shape, tensors)


def save_safetensors(
    model: TensorModel, path: Path, dtype: FileDtype = "f16", convention: Convention = "blinkdl"
) -> Path:
    """Write `model` as in published files, with vectors as [1, 1, D]. ai00's have other names and orientations."""
    specs = {spec.name: spec for spec in VERSIONS.get(model.shape.version).layout.specs(model.shape.num_layers)}
    stored = {}
    for name, values in model.tensors.items():
        spec = specs[name]
        stored_name = spec.file_name
        if convention == "ai00":
            stored_name = spec.ai00_name or name
            values = values.swapaxes(-1, -2) if spec.ai00_swaps else values
        if values.shape == (model.shape.width,) and _MIX_OR_BIAS.fullmatch(name):
            values = values.reshape(1, 1, -1)
        stored[stored_name] = np.ascontiguousarray(values, dtype=_FILE_DTYPES[dtype])
    save_file(stored, path)
    return path


def _draw_v7(shape: ShapeV7, generator: np.random.Generator) -> Iterator[tuple[str, NDArray[np.float64]]]:
    yield "emb.weight", generator.normal(0.0, 0.05, (shape.vocab_size, shape.width))  # so small that eps matters
    yield from _draw_norm("blocks.0.ln0", shape.width, generator)
    for layer in range(shape.num_layers):
        yield from _draw_norm(f"blocks.{layer}.ln1", shape.width, generator)
        yield from _draw_norm(f"blocks.{layer}.ln2", shape.width, generator)
        yield from _draw_time_mix(f"blocks.{layer}.att", shape, generator)
        yield from _draw_channel_mix(f"blocks.{layer}.ffn", shape, generator)
    yield from _draw_norm("ln_out", shape.width, generator)
    if shape.has_head:
        yield "head.weight", 4.0 * _draw_matrix(shape.vocab_size, shape.width, generator)
    if isinstance(shape, ShapeV7Embedding):
        for head in TASKS.values():
            yield from _draw_task_head(head, shape.width, generator)
    if isinstance(shape, ShapeV7Reranker):
        yield "head.0.weight", _draw_matrix(shape.width, shape.width, generator)
        yield "head.0.bias", generator.normal(0.0, 0.1, shape.width)
        yield "head.2.weight", _draw_matrix(1, shape.width, generator)
    if isinstance(shape, ShapeV7DeepEmbed):
        for layer in range(shape.num_layers):
            yield from _draw_deep_embed(f"blocks.{layer}.ffn", shape, generator)


def _draw_time_mix(
    prefix: str, shape: ShapeV7, generator: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    width, ranks = shape.width, shape.ranks
    for kind in "rwkvag":
        yield f"{prefix}.x_{kind}", generator.uniform(0.0, 1.0, width)
    yield f"{prefix}.w0", generator.permutation(np.linspace(-6.0, 2.0, width))
    yield f"{prefix}.a0", generator.normal(0.0, 1.0, width)
    yield f"{prefix}.v0", generator.normal(0.5, 1.0, width)
    for kind, rank, strength in (("w", ranks.w, 1.0), ("a", ranks.a, 1.0), ("v", ranks.v, 1.0), ("g", ranks.g, 2.0)):
        yield f"{prefix}.{kind}1", generator.normal(0.0, width**-0.5, (width, rank))
        yield f"{prefix}.{kind}2", generator.normal(0.0, strength * rank**-0.5, (rank, width))
    yield f"{prefix}.k_k", generator.normal(0.85, 0.1, width)
    yield f"{prefix}.k_a", generator.normal(1.0, 0.1, width)
    yield f"{prefix}.r_k", generator.normal(0.0, 0.3, (shape.num_heads, shape.head_size))
    for matrix in ("receptance", "key", "value", "output"):
        yield f"{prefix}.{matrix}.weight", _draw_matrix(width, width, generator)
    yield from _draw_norm(f"{prefix}.ln_x", width, generator)


def _draw_channel_mix(
    prefix: str, shape: ShapeV7, generator: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    yield f"{prefix}.x_k", generator.uniform(0.0, 1.0, shape.width)
    yield f"{prefix}.key.weight", _draw_matrix(shape.ffn_width, shape.width, generator)
    yield f"{prefix}.value.weight", _draw_matrix(shape.width, shape.ffn_width, generator)


def _draw_deep_embed(
    prefix: str, shape: ShapeV7DeepEmbed, generator: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield DeepEmbed's tensors, which scale the channel mix by numbers around 1."""
    yield f"{prefix}.s_emb.weight", generator.normal(0.0, 0.1, (shape.vocab_size, MATRIX_SIZE))
    yield f"{prefix}.s_emb_x.weight", 0.1 * _draw_matrix(MATRIX_SIZE, shape.width, generator)
    yield f"{prefix}.s1", generator.normal(0.0, shape.width**-0.5, (shape.width, SIDE))
    yield f"{prefix}.s2", generator.normal(0.0, SIDE**-0.5, (SIDE, shape.ffn_width))
    yield f"{prefix}.s0", generator.normal(1.0, 0.1, shape.ffn_width)


def _draw_task_head(
    prefix: str, width: int, generator: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name in ("fc1", "fc2"):
        yield f"{prefix}.{name}.weight", _draw_matrix(width, width, generator)
    yield from _draw_norm(f"{prefix}.norm", width, generator)


def _draw_matrix(rows: int, columns: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return a matrix [out, in] that gives outputs of unit size for inputs of unit size."""
    return generator.normal(0.0, columns**-0.5, (rows, columns))


def _draw_norm(prefix: str, width: int, generator: np.random.Generator) -> Iterator[tuple[str, NDArray[np.float64]]]:
    yield f"{prefix}.weight", generator.normal(1.0, 0.2, width)
    yield f"{prefix}.bias", generator.normal(0.0, 0.1, width)


def _round_to_f16(values: NDArray[np.float64], bits: int) -> NDArray[np.float16]:
    mantissa, exponent = np.frexp(values)
    rounded: NDArray[np.float64] = np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)
    return rounded.astype(np.float16)
