"""A builder of a layer's stages on a device, and the stages that several versions of RWKV share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rnn_engine.errors import DeviceError
from rnn_engine.forward.context import BuildContext, PackedVectors, norm_shift_stage
from rnn_engine.forward.matmul import BoundMatMul
from rnn_engine.forward.segments import Activation, Matrix, SegmentWeights
from rnn_engine.forward.stages import KernelStage, Stage
from rnn_engine.forward.weight_formats import round_up
from rnn_engine.gpu import Buffer
from rnn_engine.types import F32, Model
from rnn_engine.versions.shared.layout import HeadsShape, RwkvShape
from shaders import Constant

MAX_HEAD_SIZE: Final = 256  # a head has a thread a row, and every device allows this many in a workgroup
_HEAD_BY_LANES: Final = 64  # the head size that head_by_lanes.wgsl requires; all published models have it


def check_head_size(shape: HeadsShape) -> None:
    """Raise DeviceError if the model's heads are larger than the kernels can process."""
    if shape.head_size > MAX_HEAD_SIZE:
        raise DeviceError(f"head size {shape.head_size} is not supported on a GPU; expected at most {MAX_HEAD_SIZE}")


class LayerBuilder:
    """Builds the stages of one layer while the model is loaded onto a device.

    Activation buffers consist of planes: a plane is [T, D] floats.
    """

    def __init__(self, context: BuildContext, layer: int, vectors: PackedVectors) -> None:
        self.context = context
        self.layer = layer
        self.vectors = vectors
        self.width = context.model.shape.width
        self.plane = context.limits.max_tokens * self.width

    def label(self, what: str) -> str:
        return f"layer {self.layer} {what}"

    def weights(self, name: str, *, transposed: bool = False) -> SegmentWeights:
        """Return the weight matrix of this layer that is called `name`, without `blocks.N.`; [C, R] if `transposed`."""
        return self.context.weights(f"blocks.{self.layer}.{name}", transposed=transposed)

    def norm_shift(
        self,
        what: str,
        norm: str,
        mixes: tuple[str, ...],
        shift: str,
        outputs: Buffer,
        *,
        keeps_difference: bool = False,
    ) -> KernelStage:
        """Return the stage of a layer norm and token shift; see `rnn_engine.forward.context.norm_shift_stage`."""
        return norm_shift_stage(
            self.context,
            self.layer,
            self.label(what),
            self.vectors,
            norm=norm,
            mixes=mixes,
            shift=shift,
            outputs=outputs,
            keeps_difference=keeps_difference,
        )

    def matmul(
        self, what: str, matrices: Sequence[Matrix], inputs: Buffer, outputs: Buffer, operands: Buffer | None = None
    ) -> BoundMatMul:
        """Return the stage that multiplies `inputs` by `matrices` and writes `outputs`.

        Biases and other operands are read from `operands`, by default the layer's vectors.
        """
        operands = operands or self.vectors.buffer
        return self.context.matmul_stage(self.label(what), matrices, operands, inputs, outputs)

    def alone(self, name: str, activation: Activation) -> Matrix:
        """Return the matrix `name`, reading and writing buffers that belong to it alone, each from its start."""
        weights = self.weights(name)
        rows, columns = weights.values.shape
        return Matrix(weights, 0, round_up(columns, 8), 0, round_up(rows, 8), activation)

    def output(self, mixed: Buffer) -> BoundMatMul:
        """Return the stage of the output matmul of the time mix: it reads `mixed` [T, D] and adds to the residual
        stream.
        """
        matrix = self.alone("att.output.weight", Activation.RESIDUAL)
        return self.matmul("output", [matrix], mixed, self.context.buffers.x)

    def between_planes(self, name: str, source: int, target: int, activation: Activation = Activation.NONE) -> Matrix:
        """Return the square matrix `name`, reading plane `source` of the inputs and writing plane `target` of the
        outputs.
        """
        return Matrix(self.weights(name), source * self.plane, self.width, target * self.plane, self.width, activation)


class ScratchBuffers:
    """The activation buffers of a time mix without adapters. All layers share them."""

    def __init__(self, context: BuildContext, num_mixes: int, num_projections: int) -> None:
        plane = 4 * context.limits.max_tokens * context.model.shape.width
        self.mixes = context.memory.create_buffer("mixes", num_mixes * plane)  # [M, T, D]
        self.projected = context.memory.create_buffer("projected", num_projections * plane)  # [P, T, D]
        self.mixed = context.memory.create_buffer("mixed", plane)  # [T, D]


def block_lookup(model: Model, layer: int) -> Callable[[str], F32]:
    """Return a function from the name of a tensor of the layer, without `blocks.N.`, to the tensor in f32."""
    return lambda name: model.tensor(f"blocks.{layer}.{name}").astype(np.float32)


def static_mixes(lookup: Callable[[str], F32], names: Sequence[str]) -> dict[str, F32]:
    """Return the token shift mixes `names` of RWKV-4 and RWKV-5 in the form that the kernels use: 1 - m for each mix m.

    These versions compute x * m + previous * (1 - m), and the kernels x + (previous - x) * (1 - m).
    """
    return {name: 1 - lookup(name) for name in names}


class GatedChannelMix:
    """The three stages of the channel mix of RWKV-4 to RWKV-6, whose output is multiplied by the sigmoid of a
    receptance.
    """

    def __init__(self, context: BuildContext, mixes: Buffer) -> None:
        """Allocate the buffer of hidden activations. The stages overwrite `mixes`, which has room for two planes at
        least.
        """
        shape, tokens = context.model.shape, context.limits.max_tokens
        assert isinstance(shape, RwkvShape)
        self._mixes = mixes
        self._hidden_stride = round_up(shape.ffn_width, 8)
        self._receptance_start = tokens * self._hidden_stride
        size = 4 * (self._receptance_start + tokens * shape.width)
        self._hidden = context.memory.create_buffer("ffn hidden", size)  # [T, F], then the receptance [T, D]

    def stages(self, builder: LayerBuilder, mix_k: str, mix_r: str) -> tuple[Stage, ...]:
        """Return the stages of the layer of `builder`. `mix_k` and `mix_r` name adjacent vectors of the layer."""
        width = builder.width
        key = Matrix(builder.weights("ffn.key.weight"), 0, width, 0, self._hidden_stride, Activation.SQUARED_RELU)
        receptance = Matrix(
            builder.weights("ffn.receptance.weight"),
            inputs_start=builder.plane,
            inputs_stride=width,
            outputs_start=self._receptance_start,
            outputs_stride=width,
            activation=Activation.SIGMOID,
        )
        value = Matrix(
            builder.weights("ffn.value.weight"),
            inputs_start=0,
            inputs_stride=self._hidden_stride,
            outputs_start=0,
            outputs_stride=width,
            activation=Activation.SCALED_RESIDUAL,
            operand_start=self._receptance_start,
            operand_stride=width,
        )
        x = builder.context.buffers.x
        return (
            builder.norm_shift("ffn norm", "ln2", (mix_k, mix_r), "ffn_shift", self._mixes),
            builder.matmul("key and receptance", [key, receptance], self._mixes, self._hidden),
            builder.matmul("value", [value], self._hidden, x, operands=self._hidden),
        )


@dataclass(frozen=True, slots=True)
class Decay:
    """The place of a recurrence's decay: its buffer, and offsets in floats.

    The decay is one vector for all tokens or one for each.
    """

    buffer: Buffer
    start: int
    stride: int  # from one token to the next; 0 if all tokens have the same decay


def bonus_recurrence(
    builder: LayerBuilder,
    shape: HeadsShape,
    *,
    bonus: str,
    projected: Buffer,
    decay: Decay,
    mixed: Buffer,
    has_gate: bool,
) -> KernelStage:
    """Return the stage of the wkv recurrence of RWKV-5 and RWKV-6, including its group norm and gate.

    It reads `projected` [r, k, v, g] and writes `mixed`. `bonus` is the name of u [D] in the layer's vectors.
    """
    constants = {
        "U": builder.vectors.starts[bonus],
        "DECAY_START": decay.start,
        "DECAY_STRIDE": decay.stride,
        "HAS_GATE": has_gate,
    }
    return head_stage(
        builder, shape, "wkv5", constants, {"projected": projected, "decay": decay.buffer, "mixed": mixed}
    )


def head_stage(
    builder: LayerBuilder,
    shape: HeadsShape,
    kernel: str,
    constants: Mapping[str, Constant],
    buffers: Mapping[str, Buffer],
) -> KernelStage:
    """Return the stage of a wkv recurrence, including its group norm. It runs a workgroup for each head of each run.

    If lanes may share what they load, the kernel for heads of size 64 is another one, with `_by_lanes` in its name.
    """
    context, starts, num_heads = builder.context, builder.vectors.starts, shape.num_heads
    by_lanes = context.tuning.broadcast and shape.head_size == _HEAD_BY_LANES
    common = {
        "WIDTH": shape.width,
        "HEAD_SIZE": shape.head_size,
        "STATE_STRIDE": context.state_layout.stride,
        "WKV_OFFSET": context.state_layout.offsets["wkv"],
        "GROUP_NORM_WEIGHT": starts["att.ln_x.weight"],
        "GROUP_NORM_BIAS": starts["att.ln_x.bias"],
        "EPSILON": shape.group_norm_epsilon,
    }
    return context.kernel_stage(
        builder.label("recurrence"),
        f"{kernel}_by_lanes" if by_lanes else kernel,
        {**common, **constants},
        {"vectors": builder.vectors.buffer, "state": context.states[builder.layer], **buffers},
        lambda step: (num_heads, step.num_runs),
        {} if by_lanes else {"VECTORS": "vectors_broadcast" if context.tuning.broadcast else "vectors_direct"},
        state_bytes=4 * shape.width * shape.head_size,
    )
