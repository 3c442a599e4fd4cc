"""The sizes and tensors of EmbeddingRWKV and of its rerankers, whose layers are RWKV-7's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Layout, Sizes, TensorSpec
from rnn_engine.reference import Weights, layer_norm
from rnn_engine.types import F32, EmbeddingTask, Model
from rnn_engine.versions.shared.layout import TENSOR_NAMES, list_model, list_norm
from rnn_engine.versions.v7.layout import ShapeV7, list_layer, shape_of

TASKS: Final[Mapping[EmbeddingTask, str]] = {
    "retrieval": "head.retr_head",
    "similarity": "head.sts_head",
    "classification": "head.cls_head",
}
"""The tasks, the default first -> what the names of the tensors of a task's head begin with."""

LAYER_INDEX: Final = "reranker_layer_idx"

_MIX_OR_BIAS: Final = re.compile(r"blocks\.\d+\.(att\.(x_\w|[wav]0|k_[ka])|ffn\.x_k)")  # [1, 1, D] in files


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShapeWithoutHead(ShapeV7):
    """The sizes of an RWKV-7 whose rows are the output of the last layer after the norm."""

    @property
    def has_head(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7Embedding(_ShapeWithoutHead):
    """The sizes of an EmbeddingRWKV. A text ends with the last token of its vocabulary, whose row is its feature."""

    version: str = field(default="v7-embedding", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7Reranker(_ShapeWithoutHead):
    """The sizes of a reranker. Its vocabulary has one token."""

    version: str = field(default="v7-reranker", init=False)


def _reranker_shape(num_layers: int, sizes: Sizes) -> ShapeV7Reranker:
    shape = shape_of(ShapeV7Reranker, num_layers, sizes)
    if shape.vocab_size != 1 or sizes["O"] != 1:
        raise ModelError(
            f"the reranker has {shape.vocab_size} tokens and {sizes['O']} scores; expected one token and one score"
        )
    if sizes.get("B", num_layers) != num_layers:
        raise ModelError(f"{LAYER_INDEX} has {sizes['B']} numbers; expected {num_layers}, one for each layer")
    return shape


# The tensors. O outputs, B entries of the list of layers; the other letters are RWKV-7's.


def _embedding_tensors(num_layers: int) -> tuple[TensorSpec, ...]:
    heads = [
        spec
        for head in TASKS.values()
        for spec in (
            TensorSpec(f"{head}.fc1.weight", ("D", "D")),
            TensorSpec(f"{head}.fc2.weight", ("D", "D")),
            *list_norm(f"{head}.norm"),
        )
    ]
    return (*_stored_under("rwkv.", _layers(num_layers)), *heads)


def _reranker_tensors(num_layers: int) -> tuple[TensorSpec, ...]:
    head = (
        TensorSpec("head.0.weight", ("D", "D")),
        TensorSpec("head.0.bias", ("D",)),
        TensorSpec("head.2.weight", ("O", "D")),
    )
    embedding, *others = _stored_under("reranker.", (*_layers(num_layers), *head))
    return (
        replace(embedding, file_names=(*embedding.file_names, "reranker.token.weight")),
        *others,
        TensorSpec(LAYER_INDEX, ("B",), required=False, is_integer=True),
    )


def _layers(num_layers: int) -> Iterator[TensorSpec]:
    return (spec for spec in list_model(list_layer, num_layers) if spec.name != TENSOR_NAMES.head)


def _stored_under(prefix: str, specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs under `prefix`, with axes as in the package rwkv-emb; ai00 has no such files."""
    return tuple(
        replace(
            spec,
            file_names=(prefix + spec.name,),
            ai00_swaps=False,
            file_axes=3 if _MIX_OR_BIAS.fullmatch(spec.name) else 0,
        )
        for spec in specs
    )


EMBEDDING_LAYOUT: Final = Layout(
    _embedding_tensors, partial(shape_of, ShapeV7Embedding), unused=re.compile(r"rwkv\.head\.weight|(vit|proj)\..*")
)
"""EmbeddingRWKV's tensors. Its files may also have a head of the vocabulary and an encoder of pictures."""

RERANKER_LAYOUT: Final = Layout(_reranker_tensors, _reranker_shape)


# The heads in numpy: from rows of D features to vectors, or to scores.


class TaskHeads:
    """The heads of an EmbeddingRWKV. The model may be closed after the constructor returns."""

    def __init__(self, model: Model) -> None:
        self._weights = _read(model, (name for name in model.names if name.startswith("head.")))

    def apply(self, features: F32, task: EmbeddingTask) -> F32:
        """Return the vectors [N, D] for `task` of texts with these `features` [N, D]."""
        head, weights = TASKS[task], self._weights
        hidden = np.maximum(weights.matmul(features, f"{head}.fc1.weight"), 0)
        vectors: F32 = layer_norm(features + weights.matmul(hidden, f"{head}.fc2.weight"), weights, f"{head}.norm")
        return vectors


class ScoreHead:
    """The head of a reranker. The model may be closed after the constructor returns."""

    def __init__(self, model: Model) -> None:
        self._weights = _read(model, ("head.0.weight", "head.0.bias", "head.2.weight"))

    def apply(self, features: F32) -> F32:
        """Return the scores [N] of pairs with these `features` [N, D], as log-odds."""
        weights = self._weights
        hidden = np.tanh(weights.matmul(features, "head.0.weight") + weights("head.0.bias"))
        scores: F32 = weights.matmul(hidden, "head.2.weight")[:, 0]
        return scores


def _read(model: Model, names: Iterable[str]) -> Weights:
    return Weights(model.shape, {name: model.tensor(name) for name in names}.__getitem__)
