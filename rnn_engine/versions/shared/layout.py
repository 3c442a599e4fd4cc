"""The model sizes that all RWKV versions have, and lists of the tensors that several versions share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import isclose
from typing import Final, Self

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import TensorSpec
from rnn_engine.types import FieldKind, MatrixPlace, ModelShape, StateField, TensorNames

GROUP_NORM_EPSILON: Final = 64e-5
"""The epsilon of BlinkDL's package, for RWKV-5 since its version 0.8.21. Before that, and in rwkv.cpp, it is 1e-5."""


_EMBEDDING_NORM: Final = "blocks.0.ln0"
TENSOR_NAMES: Final = TensorNames("emb.weight", _EMBEDDING_NORM, "ln_out", "head.weight", "blocks.")
_IN_LAYER: Final = re.compile(r"blocks\.([0-9]+)\.(\w+)\.(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RwkvShape(ModelShape):
    """Base class of the sizes of an RWKV model, for all versions."""

    ffn_width: int  # F

    @property
    def tensor_names(self) -> TensorNames:
        return TENSOR_NAMES

    def place_of(self, name: str) -> MatrixPlace:
        match = _IN_LAYER.fullmatch(name)
        if match is None:
            return MatrixPlace("emb" if name == TENSOR_NAMES.embedding else "head", None)
        layer, part, rest = match.groups()
        return MatrixPlace(part if rest.endswith(".weight") else "adapters", int(layer))

    @property
    def layer_weights(self) -> int:
        return 4 * self.width**2 + 2 * self.width * self.ffn_width


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsShape(RwkvShape):
    """The sizes and the group norm epsilon of a model whose state has one matrix per head.

    Besides the matrices, the state of a layer has the token shifts of time mix and channel mix.
    """

    num_heads: int  # H
    head_size: int  # N; H * N == D
    group_norm_epsilon: float = GROUP_NORM_EPSILON

    @property
    def heads_a_kv_head(self) -> int:
        """The number of neighbouring heads that share a key and a value."""
        return 1

    @property
    def state_fields(self) -> tuple[StateField, ...]:
        return (
            StateField("att_shift", FieldKind.SHIFT, (self.width,)),
            StateField("wkv", FieldKind.MATRIX, (self.num_heads, self.head_size, self.head_size)),
            StateField("ffn_shift", FieldKind.SHIFT, (self.width,)),
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        names = ("num_layers", "width", "num_heads", "head_size", "ffn_width", "vocab_size")
        return {name: getattr(self, name) for name in names}

    @property
    def settings(self) -> str:
        usual = self.group_norm_epsilon == GROUP_NORM_EPSILON
        return "" if usual else f"group norm epsilon {self.group_norm_epsilon!r}"

    def with_group_norm_epsilon(self, epsilon: float) -> Self:
        """Return a copy with another epsilon, or with the default if that differs only by rounding."""
        usual = isclose(epsilon, GROUP_NORM_EPSILON, rel_tol=1e-6)
        return replace(self, group_norm_epsilon=GROUP_NORM_EPSILON if usual else epsilon)


def check_heads(tensor: str, num_heads: int, head_size: int, width: int) -> None:
    """Raise ModelError if `num_heads` * `head_size`, read from the tensor `tensor`, is not the model's width."""
    if num_heads * head_size != width:
        raise ModelError(
            f"{tensor} is [{num_heads}, {head_size}], {num_heads} heads of size {head_size}; "
            f"expected a product of {width}, the model's width"
        )


# The tensors that all versions have: the embedding and the head, the norms, and the projections.
#
# D width, V vocabulary, H heads, N head size, F ffn width.


def list_model(list_layer: Callable[[int], Iterator[TensorSpec]], num_layers: int) -> tuple[TensorSpec, ...]:
    """Return the specs of all tensors of a model: those of its layers, by number, of embedding, head and norms."""
    return (
        TensorSpec(TENSOR_NAMES.embedding, ("V", "D")),
        *list_norm(_EMBEDDING_NORM),
        *chain.from_iterable(map(list_layer, range(num_layers))),
        *list_norm(TENSOR_NAMES.head_norm),
        TensorSpec(TENSOR_NAMES.head, ("V", "D")),
    )


def list_norm(name: str) -> Iterator[TensorSpec]:
    """Yield the specs of the weight and the bias of the layer norm or group norm called `name`."""
    yield TensorSpec(f"{name}.weight", ("D",))
    yield TensorSpec(f"{name}.bias", ("D",))


def list_projections(block: str, *names: str) -> Iterator[TensorSpec]:
    """Yield the specs of the [D, D] matrices `names` of a time mix; names of the layer's tensors begin with `block`."""
    for name in names:
        yield TensorSpec(f"{block}.att.{name}.weight", ("D", "D"))


def list_static_mixes(part: str, kinds: str) -> Iterator[TensorSpec]:
    """Yield the specs of token shift vectors of RWKV-4 or RWKV-5, one for each letter of `kinds`, such as kvr."""
    for kind in kinds:
        yield TensorSpec(f"{part}.time_mix_{kind}", ("D",))


def tuned_state(block: str) -> TensorSpec:
    """Return the spec of an optional tensor: a layer's trained initial state, wkv [H, value, key]."""
    return TensorSpec(f"{block}.att.time_state", ("H", "N", "N"), required=False, ai00_swaps=True)


def list_channel_mix(block: str) -> Iterator[TensorSpec]:
    """Yield the specs of the key, receptance and value matrices of the channel mix of one layer."""
    yield TensorSpec(f"{block}.ffn.key.weight", ("F", "D"))
    yield TensorSpec(f"{block}.ffn.receptance.weight", ("D", "D"))
    yield TensorSpec(f"{block}.ffn.value.weight", ("D", "F"))
