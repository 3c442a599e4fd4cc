"""The forward pass of RWKV-7 on a device: the buffers and the stages of its layers.

A layer has eight dispatches. On hardware, a step of one token has five: the matmuls compute the norms before them, and
the recurrence computes the adapters' second halves.

1. Norm and token shift into six mixes.
2. r, k, v and the adapters' first halves.
3. The adapters' second halves.
4. The recurrence of every head.
5. The output, added to the residual.
6. Norm and token shift.
7. Key, squared relu.
8. Value, added to the residual.

The maths is that of reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from numpy.typing import NDArray

from rnn_engine.forward.context import BuildContext, NormShift, PackedVectors
from rnn_engine.forward.matmul import BoundMatMul, NormedMatMul
from rnn_engine.forward.segments import Activation, Matrix
from rnn_engine.forward.stages import Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.plan import (
    GatedRecurrence,
    LayerBuilder,
    adapter_constants,
    can_compute_gates,
    check_head_size,
    head_stage,
    stage_with_adapters,
)
from rnn_engine.versions.v7.layout import ShapeV7
from rnn_engine_shaders import Constant

_MIXES: Final = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g")
_ATT_MIXES: Final = tuple(f"att.{mix}" for mix in _MIXES)
ATT_NORM: Final = NormShift("ln1", _ATT_MIXES, "att_shift")
FFN_NORM: Final = NormShift("ln2", ("ffn.x_k",), "ffn_shift")
_VECTORS: Final = (
    *_ATT_MIXES,
    "ffn.x_k",
    *("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"),
    *("att.w0", "att.a0", "att.v0"),
    *("att.k_k", "att.k_a", "att.r_k", "att.ln_x.weight", "att.ln_x.bias"),
)  # all of size D


@dataclass(frozen=True, slots=True)
class _Adapter:
    """An adapter of the time mix: its activations, and the plane of the gates' buffer that it writes."""

    name: str
    plane: int
    first: Activation
    second: Activation


_ADAPTERS: Final = (
    _Adapter("w", 0, Activation.TANH, Activation.DECAY),
    _Adapter("a", 1, Activation.NONE, Activation.BIASED_SIGMOID),
    _Adapter("g", 2, Activation.SIGMOID, Activation.NONE),
    _Adapter("v", 3, Activation.NONE, Activation.BIASED_SIGMOID),
)


def load_layers(context: BuildContext) -> Iterator[tuple[Stage, ...]]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = context.model.shape
    assert isinstance(shape, ShapeV7)
    check_head_size(shape)
    scratch = Scratch(context, shape)
    for layer in range(shape.num_layers):
        yield Layer(context, scratch, shape, layer).stages()


class Scratch:
    """The device buffers for activations within a layer of RWKV-7. All layers share them."""

    def __init__(
        self, context: BuildContext, shape: ShapeV7, *, num_mixes: int = 6, ffn_floats: int | None = None
    ) -> None:
        """Allocate the buffers; variants may have more planes of `mixes`, or more floats of `ffn_hidden`."""
        tokens, width = context.limits.max_tokens, shape.width
        self.hidden_strides = {adapter.name: round_up(getattr(shape.ranks, adapter.name), 8) for adapter in _ADAPTERS}
        self.hidden_starts: dict[str, int] = {}  # of the adapters' inner vectors in `projected`
        place = 3 * tokens * width
        for name, stride in self.hidden_strides.items():
            self.hidden_starts[name] = place
            place += tokens * stride
        create = context.memory.create_buffer
        self.mixes = create("mixes", 4 * num_mixes * tokens * width)  # [6 or more, T, D]
        self.projected = create("projected", 4 * place)  # r, k, v [3, T, D], then w, a, g, v's inner vectors [T, R]
        self.gates = create("gates", 4 * 4 * tokens * width)  # decay, a, g, v gate: [4, T, D]
        self.v_first = create("v_first", 4 * tokens * width)  # [T, D]
        self.mixed = create("mixed", 4 * tokens * width)  # [T, D]
        ffn_floats = ffn_floats or tokens * round_up(shape.ffn_width, 8)
        self.ffn_hidden = create("ffn hidden", 4 * ffn_floats)  # [T, F]

    def with_own_hidden(self, context: BuildContext) -> Self:
        """Return a copy with another buffer for the hidden activations of the channel mix."""
        own = copy(self)
        own.ffn_hidden = context.memory.create_buffer("ffn hidden", self.ffn_hidden.size)
        return own


class TimeMixStages(NamedTuple):
    """The stages of a layer's time mix, in their order."""

    projections: NormedMatMul
    recurrence: GatedRecurrence
    output: BoundMatMul


class ChannelMixStages(NamedTuple):
    """The stages of a layer's channel mix, in their order."""

    key: NormedMatMul
    value: BoundMatMul


class Layer(LayerBuilder):
    """A helper that builds the stages of one RWKV-7 layer while a model is loaded onto a device."""

    def __init__(
        self,
        context: BuildContext,
        scratch: Scratch,
        shape: ShapeV7,
        layer: int,
        more_vectors: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    ) -> None:
        model, block = context.model, f"blocks.{layer}"
        vectors = {name: model.tensor(f"{block}.{name}") for name in _VECTORS if model.has(f"{block}.{name}")}
        super().__init__(
            context, layer, PackedVectors.pack(context, f"layer {layer} vectors", {**vectors, **more_vectors})
        )
        self._scratch = scratch
        self._shape = shape

    @property
    def _att_norm(self) -> NormShift:
        """`ATT_NORM` without the mix of the gate if the layer has no gate."""
        return replace(ATT_NORM, mixes=tuple(mix for mix in ATT_NORM.mixes if mix in self.vectors.starts))

    def stages(self) -> tuple[Stage, ...]:
        return (*self.time_mix_stages(), *self.channel_mix_stages())

    def time_mix_stages(self, traced: Buffer | None = None) -> TimeMixStages:
        """Return the stages of the time mix. For `traced` see `rnn_engine.versions.shared.plan.head_stage`."""
        scratch = self._scratch
        return TimeMixStages(
            self.normed_matmul(
                "att norm", self._att_norm, "projections", self._projections(), scratch.mixes, scratch.projected
            ),
            self._recurrence(self.matmul("gates", self._gates(), scratch.projected, scratch.gates), traced),
            self.output(scratch.mixed),
        )

    def channel_mix_stages(self) -> ChannelMixStages:
        mixes, hidden, x = self._scratch.mixes, self._scratch.ffn_hidden, self.context.buffers.x
        key = self.alone("ffn.key.weight", Activation.SQUARED_RELU)
        value = self.alone("ffn.value.weight", Activation.RESIDUAL, inputs_from=Activation.SQUARED_RELU)
        return ChannelMixStages(
            self.normed_matmul("ffn norm", FFN_NORM, "key", [key], mixes, hidden),
            self.matmul("value", [value], hidden, x),
        )

    def _projections(self) -> list[Matrix]:
        """Return the matrices of r, k and v, to planes [T, D], and the adapters' first halves, after these."""
        planes = enumerate((("receptance", "x_r"), ("key", "x_k"), ("value", "x_v")))
        matrices = [
            self.between_planes(f"att.{name}.weight", _MIXES.index(mix), plane) for plane, (name, mix) in planes
        ]
        for adapter in self._adapters():
            start, stride = self._scratch.hidden_starts[adapter.name], self._scratch.hidden_strides[adapter.name]
            down = self.weights(f"att.{adapter.name}1", transposed=True)  # [R, D]
            mix_start = _MIXES.index(f"x_{adapter.name}") * self.plane
            matrices.append(Matrix(down, mix_start, self.width, start, stride, adapter.first))
        return matrices

    def _gates(self) -> list[Matrix]:
        """Return the up-projections of the layer's low-rank adapters, which compute the decay and the gates."""
        matrices = []
        for adapter in self._adapters():
            start, stride = self._scratch.hidden_starts[adapter.name], self._scratch.hidden_strides[adapter.name]
            up = self.weights(f"att.{adapter.name}2", transposed=True)  # [D, R]
            bias = self.vectors.starts.get(f"att.{adapter.name}0", 0)
            place = adapter.plane * self.plane
            matrices.append(
                Matrix(up, start, stride, place, self.width, adapter.second, bias, inputs_from=adapter.first)
            )
        return matrices

    def _adapters(self) -> tuple[_Adapter, ...]:
        """Return the layer's adapters: layer 0 has no value residual, and an ARWKV may have no gate."""
        has, att = self.context.model.has, f"blocks.{self.layer}.att"
        own = (adapter for adapter in _ADAPTERS if has(f"{att}.{adapter.name}1"))
        return tuple(adapter for adapter in own if adapter.name != "v" or self.layer > 0)

    def _recurrence(self, gates: BoundMatMul, traced: Buffer | None) -> GatedRecurrence:
        scratch = self._scratch
        has_gate = any(adapter.name == "g" for adapter in self._adapters())
        constants = {"IS_FIRST_LAYER": self.layer == 0, "HAS_GATE": has_gate, **self.key_constants()}
        buffers = {"projected": scratch.projected, "v_first": scratch.v_first, "mixed": scratch.mixed}
        stored = head_stage(self, self._shape, "wkv7", constants, {**buffers, "gates": scratch.gates}, traced)
        if traced is not None or not can_compute_gates(self.context, gates):
            return GatedRecurrence(gates, stored, None)
        ((part, _),) = gates.parts
        places = dict(zip((adapter.name for adapter in self._adapters()), part.places, strict=True))
        for adapter in _ADAPTERS:
            has_bias = adapter.second is not Activation.NONE
            constants |= adapter_constants(adapter.name, places.get(adapter.name), has_bias=has_bias)
        includes = {"gates": "gates_by_rows"}
        alone = stage_with_adapters(self, self._shape, "wkv7", gates, constants, buffers, includes)
        return GatedRecurrence(gates, stored, alone)

    def key_constants(self) -> dict[str, Constant]:
        """Return the places, in the layer's vectors, of those with which a head turns k into keys and the bonus."""
        starts = self.vectors.starts
        return {"K_K": starts["att.k_k"], "K_A": starts["att.k_a"], "R_K": starts["att.r_k"]}
