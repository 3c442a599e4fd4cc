"""The forward and backward passes of RWKV-7 on a device: the buffers and the stages of its layers.

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

from rnn_engine.backward.context import BackwardContext, BackwardLayer
from rnn_engine.backward.matmul import matmul_backward
from rnn_engine.forward.context import BuildContext, CarriedRows, NormShift, PackedVectors
from rnn_engine.forward.matmul import BoundMatMul, NormedMatMul
from rnn_engine.forward.segments import Activation, Matrix
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.backward_plan import (
    HeadBuffers,
    RecurrenceBackward,
    keep_x,
    mixes_again,
    norm_shift_backward,
    vectors_backward,
)
from rnn_engine.versions.shared.plan import (
    Decay,
    GatedRecurrence,
    LayerBuilder,
    adapter_constants,
    can_compute_gates,
    group_norm_constants,
    head_stage,
    shape_for_gpu,
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
    *("att.w0", "att.a0", "att.v0"),  # these and those before them can be trained
    *("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"),
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
    shape = shape_for_gpu(context.model, ShapeV7)
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
        context.carried.append(CarriedRows(self.v_first))
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
        """Return the layer's matrices for r, k and v, and the down-projections of its low-rank adapters.

        Each of r, k and v is written to a plane [T, D] of its own, and the adapters' hidden vectors after these.
        """
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
        return tuple(adapter for adapter in own if adapter.name != "v" or not self.is_first)

    def _recurrence(self, gates: BoundMatMul, traced: Buffer | None) -> GatedRecurrence:
        scratch = self._scratch
        has_gate = any(adapter.name == "g" for adapter in self._adapters())
        constants = {"IS_FIRST_LAYER": self.is_first, "HAS_GATE": has_gate, **self.key_constants()}
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


# The backward pass of RWKV-7 on a device: the buffers and the stages of its layers.
#
# On the way back, a layer has twelve dispatches:
#
# 1. Value, transposed, with the slope of the squared relu.
# 2. Key, transposed.
# 3. Norm and token shift, added to the gradient of the residual.
# 4. The output, transposed.
# 5. Gate, bonus and group norm of every head.
# 6. The recurrence of every head from its end, by rows of the state: gradients of v and of what the state has of kk.
# 7. The same by columns: gradients of the keys, and of the initial state.
# 8. The recurrence once more, by columns: gradients of r, of the removed keys and of the decay.
# 9. Keys, in-context rate, decay and value residual.
# 10. The adapters' second halves, transposed, with the slopes of their inner activations.
# 11. r, k, v and the adapters' first halves, transposed.
# 12. Norm and token shift, added to the gradient of the residual.
# Gradients are in buffers with the layout of what they belong to.


def load_backward(context: BackwardContext) -> Iterator[BackwardLayer]:
    """Load the layers one by one, and yield their stages. Raises DeviceError if the heads are too large."""
    shape = shape_for_gpu(context.forward.model, ShapeV7)
    scratch = Scratch(context.forward, shape)
    gradients = _Gradients(context, shape, scratch)
    for layer in range(shape.num_layers):
        own = scratch.with_own_hidden(context.forward) if layer and context.pairs is None else scratch
        yield _Layer(context, own, gradients, shape, layer).backward_layer()


class _Gradients:
    """The device buffers of the gradients within a layer of RWKV-7, which mirror those of `Scratch`."""

    def __init__(self, context: BackwardContext, shape: ShapeV7, scratch: Scratch) -> None:
        create = context.forward.memory.create_buffer
        self.mixes = create("gradients of mixes", scratch.mixes.size)
        self.projected = create("gradients of projected", scratch.projected.size)
        self.gates = create("gradients of gates", scratch.gates.size)
        self.v_first = create("gradient of v_first", scratch.v_first.size)
        self.ffn_hidden = create("gradients of ffn hidden", scratch.ffn_hidden.size)
        decay = Decay(scratch.gates, 0, shape.width)
        self.heads = HeadBuffers(scratch.projected, decay, self.projected, self.gates)
        self.recurrence = RecurrenceBackward(context, shape, removes_keys=True)


class _Layer(Layer):
    """A helper that builds the stages of one RWKV-7 layer and of its backward pass."""

    def __init__(
        self, context: BackwardContext, scratch: Scratch, gradients: _Gradients, shape: ShapeV7, layer: int
    ) -> None:
        super().__init__(context.forward, scratch, shape, layer)
        self._backward = context
        self._gradients = gradients
        self._middle = context.forward.memory.create_buffer("x after the time mix", context.dx.size)  # [T, D]

    def backward_layer(self) -> BackwardLayer:
        time_mix, channel_mix = self.time_mix_stages(self._gradients.recurrence.traced), self.channel_mix_stages()
        return BackwardLayer(
            forward=(*time_mix, keep_x(self._backward, self._middle), *channel_mix),
            recompute=(*self._hidden_again(channel_mix), *time_mix[:-1]),
            backward=(*self._channel_mix_backward(channel_mix), *self._time_mix_backward(time_mix)),
        )

    def _hidden_again(self, forward: ChannelMixStages) -> Iterator[Stage]:
        """Yield the stages of the hidden activations beside pairs, which take memory that each layer would need."""
        if self._backward.pairs is not None:
            yield from mixes_again(self._backward, self, "ffn norm", FFN_NORM, self._middle, self._scratch.mixes)
            yield forward.key.matmul

    def _channel_mix_backward(self, forward: ChannelMixStages) -> Iterator[Stage]:
        context, d, hidden = self._backward, self._gradients, self._scratch.ffn_hidden
        yield matmul_backward(context, forward.value, context.dx, d.ffn_hidden, hidden)
        yield from mixes_again(context, self, "ffn norm", FFN_NORM, self._middle, d.projected)
        yield matmul_backward(context, forward.key.matmul, d.ffn_hidden, d.mixes, d.projected)
        yield from norm_shift_backward(context, self, "ffn norm", FFN_NORM, self._middle, d.mixes)

    def _time_mix_backward(self, forward: TimeMixStages) -> Iterator[Stage]:
        """Yield the stages of the time mix. The first layer's input needs no gradient, except for its token shift."""
        context, d, recurrence = self._backward, self._gradients, self._gradients.recurrence
        yield matmul_backward(context, forward.output, context.dx, recurrence.traced)
        yield self._outputs_backward()
        yield from recurrence.to_state(self, d.heads)
        if self.layer > 0 or context.needs_first_inputs:
            yield recurrence.to_decay(self, d.heads)
            yield self._inputs_backward()
            yield from vectors_backward(context, self, ("att.w0", "att.a0"), d.gates)
            if not self.is_first:
                yield from vectors_backward(context, self, ("att.v0",), d.gates, plane=3)
            yield matmul_backward(context, forward.recurrence.gates, d.gates, d.projected, self._scratch.projected)
            yield matmul_backward(context, forward.projections.matmul, d.projected, d.mixes)
            yield from norm_shift_backward(context, self, "att norm", ATT_NORM, self.context.buffers.x, d.mixes)

    def _outputs_backward(self) -> KernelStage:
        scratch, d = self._scratch, self._gradients
        constants = {
            "IS_FIRST_LAYER": self.layer == 0,
            **self.key_constants(),
            **group_norm_constants(self, self._shape),
        }
        buffers = {"gates": scratch.gates, "v_first": scratch.v_first, "d_gates": d.gates}
        return d.recurrence.on_tokens(self, "wkv7_outputs_backward", constants, d.heads, buffers)

    def _inputs_backward(self) -> KernelStage:
        d = self._gradients
        constants = {
            "IS_FIRST_LAYER": self.layer == 0,
            "IS_LAST_LAYER": self.layer + 1 == self._shape.num_layers,
            **self.key_constants(),
        }
        buffers = {"gates": self._scratch.gates, "d_gates": d.gates, "d_v_first": d.v_first}
        return d.recurrence.on_tokens(self, "wkv7_inputs_backward", constants, d.heads, buffers)
