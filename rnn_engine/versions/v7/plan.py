"""RWKV-7 as dispatches: what its layers put on a device, and the stages of a layer.

Eight dispatches a layer:
norm and token shift into six mixes · r, k, v and the adapters' first halves · the adapters' second halves ·
the recurrence of every head · output, added to the residual · norm and token shift · key, squared relu · value, added.
The maths is that of reference.py beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rnn_engine.errors import DeviceError
from rnn_engine.forward.context import BuildContext, PackedVectors
from rnn_engine.forward.matmul import BoundMatMul
from rnn_engine.forward.norm import norm_shift_stage
from rnn_engine.forward.packing import round_up
from rnn_engine.forward.segments import Activation, Matrix
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.gpu import Buffer
from rnn_engine.versions.v7.shape import ShapeV7

_HEAD_SIZES: Final = (16, 32, 64, 128)
_MIXES: Final = ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g")
_ATT_MIXES: Final = tuple(f"att.{mix}" for mix in _MIXES)
_VECTORS: Final = (
    *_ATT_MIXES,
    "ffn.x_k",
    *("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"),
    *("att.w0", "att.a0", "att.v0"),
    *("att.k_k", "att.k_a", "att.r_k", "att.ln_x.weight", "att.ln_x.bias"),
)  # all of size D


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A low-rank adapter: the plane of `gates` that it fills, and what its halves do with their sums."""

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
    """Put the layers of an RWKV-7 on the device, one a turn. Raises DeviceError for a head size that isn't served."""
    shape = context.model.shape
    assert isinstance(shape, ShapeV7)
    if shape.head_size not in _HEAD_SIZES:
        raise DeviceError(f"head size {shape.head_size} is not served on a GPU; expected one of {_HEAD_SIZES}")
    scratch = _Scratch(context, shape)
    for layer in range(shape.num_layers):
        yield _Layer(context, scratch, shape, layer).stages()


class _Scratch:
    """The buffers between the stages of a layer; all layers share them."""

    def __init__(self, context: BuildContext, shape: ShapeV7) -> None:
        tokens, width = context.limits.max_tokens, shape.width
        self.hidden_strides = {adapter.name: round_up(getattr(shape.ranks, adapter.name), 8) for adapter in _ADAPTERS}
        self.hidden_starts: dict[str, int] = {}  # of the adapters' inner vectors in `projected`
        place = 3 * tokens * width
        for name, stride in self.hidden_strides.items():
            self.hidden_starts[name] = place
            place += tokens * stride
        create = context.memory.create_buffer
        self.mixes = create("mixes", 4 * 6 * tokens * width)  # [6, T, D]
        self.projected = create("projected", 4 * place)  # r, k, v [3, T, D], then w, a, g, v's inner vectors [T, R]
        self.gates = create("gates", 4 * 4 * tokens * width)  # decay, a, g, v gate: [4, T, D]
        self.v_first = create("v_first", 4 * tokens * width)  # [T, D]
        self.mixed = create("mixed", 4 * tokens * width)  # [T, D]
        self.ffn_hidden = create("ffn hidden", 4 * tokens * round_up(shape.ffn_width, 8))  # [T, F]


class _Layer:
    """One layer while it is loaded."""

    def __init__(self, context: BuildContext, scratch: _Scratch, shape: ShapeV7, layer: int) -> None:
        self._context = context
        self._scratch = scratch
        self._shape = shape
        self._layer = layer
        self._plane = context.limits.max_tokens * shape.width  # floats of one [T, D]
        self._vectors = PackedVectors.load(context, f"layer {layer} vectors", f"blocks.{layer}.", _VECTORS)

    def stages(self) -> tuple[Stage, ...]:
        scratch, x = self._scratch, self._context.buffers.x
        return (
            self._norm_shift("att norm", "ln1", _ATT_MIXES, "att_shift"),
            self._matmul("projections", self._projections(), scratch.mixes, scratch.projected),
            self._matmul("gates", self._gates(), scratch.projected, scratch.gates),
            self._recurrence(),
            self._matmul("output", [self._matrix("att.output", Activation.RESIDUAL)], scratch.mixed, x),
            self._norm_shift("ffn norm", "ln2", ("ffn.x_k",), "ffn_shift"),
            self._matmul("key", [self._matrix("ffn.key", Activation.SQUARED_RELU)], scratch.mixes, scratch.ffn_hidden),
            self._matmul("value", [self._matrix("ffn.value", Activation.RESIDUAL)], scratch.ffn_hidden, x),
        )

    def _label(self, what: str) -> str:
        return f"layer {self._layer} {what}"

    def _norm_shift(self, label: str, norm: str, mixes: tuple[str, ...], shift: str) -> KernelStage:
        return norm_shift_stage(
            self._context,
            self._layer,
            self._label(label),
            self._vectors,
            norm=norm,
            mixes=mixes,
            shift=shift,
            outputs=self._scratch.mixes,
        )

    def _matmul(self, label: str, matrices: list[Matrix], inputs: Buffer, outputs: Buffer) -> BoundMatMul:
        return self._context.matmul_stage(self._label(label), matrices, self._vectors.buffer, inputs, outputs)

    def _matrix(self, name: str, activation: Activation) -> Matrix:
        """A matrix that has inputs and outputs for itself."""
        weights = self._context.weights(f"blocks.{self._layer}.{name}.weight")
        rows, columns = weights.values.shape
        return Matrix(weights, 0, round_up(columns, 8), 0, round_up(rows, 8), activation)

    def _projections(self) -> list[Matrix]:
        """r, k and v into their planes, and the first halves of the adapters behind them."""
        width = self._shape.width
        planes = enumerate((("receptance", "x_r"), ("key", "x_k"), ("value", "x_v")))
        matrices = [
            Matrix(
                self._context.weights(f"blocks.{self._layer}.att.{name}.weight"),
                inputs_start=_MIXES.index(mix) * self._plane,
                inputs_stride=width,
                outputs_start=plane * self._plane,
                outputs_stride=width,
            )
            for plane, (name, mix) in planes
        ]
        for adapter in self._adapters():
            start, stride = self._scratch.hidden_starts[adapter.name], self._scratch.hidden_strides[adapter.name]
            down = self._context.weights(f"blocks.{self._layer}.att.{adapter.name}1", transposed=True)  # [R, D]
            mix_start = _MIXES.index(f"x_{adapter.name}") * self._plane
            matrices.append(Matrix(down, mix_start, width, start, stride, adapter.first))
        return matrices

    def _gates(self) -> list[Matrix]:
        """The second halves of the adapters."""
        matrices = []
        for adapter in self._adapters():
            start, stride = self._scratch.hidden_starts[adapter.name], self._scratch.hidden_strides[adapter.name]
            up = self._context.weights(f"blocks.{self._layer}.att.{adapter.name}2", transposed=True)  # [D, R]
            bias = self._vectors.starts.get(f"att.{adapter.name}0", 0)
            place = adapter.plane * self._plane
            matrices.append(Matrix(up, start, stride, place, self._shape.width, adapter.second, bias))
        return matrices

    def _adapters(self) -> tuple[_Adapter, ...]:
        """Those of this layer: layer 0 is where the first value comes from, and has no value residual."""
        return tuple(adapter for adapter in _ADAPTERS if adapter.name != "v" or self._layer > 0)

    def _recurrence(self) -> KernelStage:
        context, scratch, starts = self._context, self._scratch, self._vectors.starts
        num_heads = self._shape.num_heads
        constants = {
            "WIDTH": self._shape.width,
            "HEAD_SIZE": self._shape.head_size,
            "STATE_STRIDE": context.state_layout.stride,
            "WKV_OFFSET": context.state_layout.offsets["wkv"],
            "IS_FIRST_LAYER": self._layer == 0,
            "K_K": starts["att.k_k"],
            "K_A": starts["att.k_a"],
            "R_K": starts["att.r_k"],
            "GROUP_NORM_WEIGHT": starts["att.ln_x.weight"],
            "GROUP_NORM_BIAS": starts["att.ln_x.bias"],
        }
        buffers = {
            "vectors": self._vectors.buffer,
            "projected": scratch.projected,
            "gates": scratch.gates,
            "v_first": scratch.v_first,
            "state": context.states[self._layer],
            "mixed": scratch.mixed,
        }
        return context.kernel_stage(
            self._label("recurrence"),
            "wkv7",
            constants,
            buffers,
            lambda step: (num_heads, step.num_runs),
            {"VECTORS": "vectors_broadcast" if context.tuning.broadcast else "vectors_direct"},
        )
