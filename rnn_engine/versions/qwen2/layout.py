"""The sizes of models that have RWKV's time mixing in the body of a Qwen2, and the lists of their tensors.

The names are BlinkDL's for the time mixing, and such as they would be for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Self

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Layout, Sizes, TensorSpec
from rnn_engine.types import Norm, StateField, TensorNames
from rnn_engine.versions.shared.layout import TENSOR_NAMES, HeadsShape, check_heads, list_projections, tuned_state
from rnn_engine.versions.v6.layout import ShapeV6, list_mixes, read_sizes
from rnn_engine.versions.v7.layout import ShapeV7, list_time_mix, shape_of

_TENSOR_NAMES: Final = replace(TENSOR_NAMES, embedding_norm=None)
USUAL_RMS_EPSILON: Final = 1e-6  # of most Qwen2 models


class _Body(HeadsShape):
    """What the sizes of both versions have in common. The state of a layer is one token shift and wkv."""

    __slots__ = ()
    rms_norm_epsilon: float

    @property
    def tensor_names(self) -> TensorNames:
        return _TENSOR_NAMES

    @property
    def norm(self) -> Norm:
        return Norm(self.rms_norm_epsilon, centres=False)

    @property
    def state_fields(self) -> tuple[StateField, ...]:
        return tuple(each for each in super().state_fields if each.name != "ffn_shift")

    @property
    def sizes(self) -> Mapping[str, int]:
        grouped = {"num_kv_heads": self.num_heads // self.heads_a_kv_head} if self.heads_a_kv_head > 1 else {}
        return {**super().sizes, **grouped}

    @property
    def layer_weights(self) -> int:
        return 4 * self.width**2 + 3 * self.width * self.ffn_width

    @property
    def settings(self) -> str:
        usual = self.rms_norm_epsilon == USUAL_RMS_EPSILON
        own = () if usual else (f"RMS norm epsilon {self.rms_norm_epsilon!r}",)
        return ", ".join(filter(None, (super().settings, *own)))

    def with_norm_epsilon(self, epsilon: float) -> Self:
        stated = float(f"{epsilon:.6g}")  # files have it in f32 or in decimals
        return replace(self, rms_norm_epsilon=stated)  # type: ignore[call-arg]  # a field of both subclasses


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV6Qwen2(_Body, ShapeV6):
    """The sizes of a QRWKV6, whose heads share keys and values in groups."""

    version: str = field(default="v6-qwen2", init=False)
    num_kv_heads: int
    rms_norm_epsilon: float = USUAL_RMS_EPSILON

    @property
    def heads_a_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7Qwen2(_Body, ShapeV7):
    """The sizes of an ARWKV. Without a gate, the rank of its adapter is 0."""

    version: str = field(default="v7-qwen2", init=False)
    rms_norm_epsilon: float = USUAL_RMS_EPSILON


def _make_shape_v6(num_layers: int, sizes: Sizes) -> ShapeV6Qwen2:
    """Return the shape of a QRWKV6 from the sizes of its tensor dimensions.

    Raises ModelError if they contradict each other.
    """
    num_heads, head_size, kv_width = sizes["H"], sizes["N"], sizes["K"]
    check_heads("blocks.0.att.time_decay", num_heads, head_size, sizes["D"])
    if kv_width % head_size or num_heads * head_size % kv_width:
        raise ModelError(
            f"blocks.0.att.key.weight has {kv_width} rows; expected a number of heads of size {head_size} that divides "
            f"{num_heads}"
        )
    return ShapeV6Qwen2(num_layers=num_layers, num_kv_heads=kv_width // head_size, **read_sizes(sizes))


# The tensors. K is the width of all keys of a token; the other letters are those of RWKV-6 and 7.


def _list_tensors(list_time_mix: Callable[[int], Iterator[TensorSpec]], num_layers: int) -> tuple[TensorSpec, ...]:
    """Return the specs of all tensors of a model with `num_layers` layers."""
    layers = (spec for layer in range(num_layers) for spec in _list_layer(layer, list_time_mix(layer)))
    head_norm = TensorSpec(f"{_TENSOR_NAMES.head_norm}.weight", ("D",))
    return (TensorSpec("emb.weight", ("V", "D")), *layers, head_norm, TensorSpec("head.weight", ("V", "D")))


def _list_layer(layer: int, time_mix: Iterator[TensorSpec]) -> Iterator[TensorSpec]:
    block = f"blocks.{layer}"
    yield TensorSpec(f"{block}.ln1.weight", ("D",))
    yield from time_mix
    yield TensorSpec(f"{block}.ln2.weight", ("D",))
    yield TensorSpec(f"{block}.ffn.gate.weight", ("F", "D"))
    yield TensorSpec(f"{block}.ffn.up.weight", ("F", "D"))
    yield TensorSpec(f"{block}.ffn.down.weight", ("D", "F"))


def _list_time_mix_v6(layer: int) -> Iterator[TensorSpec]:
    att = f"blocks.{layer}.att"
    yield from list_mixes(att)
    yield TensorSpec(f"{att}.time_decay", ("H", "N"))
    yield from list_projections(f"blocks.{layer}", "receptance", "gate", "output")
    for name, width in (("receptance", "D"), ("key", "K"), ("value", "K")):
        if width == "K":
            yield TensorSpec(f"{att}.{name}.weight", (width, "D"))
        yield TensorSpec(f"{att}.{name}.bias", (width,), required=False, beside=f"blocks.0.att.{name}.bias")
    yield tuned_state(f"blocks.{layer}")


_OPTIONAL: Final = {"x_g": "g1", "g1": "g2", "g2": "g1", "ln_x.weight": "ln_x.bias", "ln_x.bias": "ln_x.weight"}
"""What an ARWKV may lack of RWKV-7's time mix -> what it then lacks, too."""


def _list_time_mix_v7(layer: int) -> Iterator[TensorSpec]:
    for spec in list_time_mix(layer):
        other = _OPTIONAL.get(spec.name.removeprefix(f"blocks.{layer}.att."))
        yield spec if other is None else replace(spec, required=False, beside=f"blocks.0.att.{other}")


LAYOUT_V6: Final = Layout(partial(_list_tensors, _list_time_mix_v6), _make_shape_v6)
LAYOUT_V7: Final = Layout(partial(_list_tensors, _list_time_mix_v7), partial(shape_of, ShapeV7Qwen2))
