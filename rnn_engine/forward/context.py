"""The parts from which a model's stages are built when it is loaded, and the stage of layer norm with token shift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.matmul import BoundMatMul, MatMul, MatMulBuffers, MatMulKernels
from rnn_engine.forward.segments import Matrix, SegmentWeights
from rnn_engine.forward.slot_states import StateLayout
from rnn_engine.forward.stages import KernelStage
from rnn_engine.forward.step import StepBuffers, StepLimits, StepSize
from rnn_engine.forward.tuning import Tuning
from rnn_engine.forward.weight_choice import FormatOf, stored_format
from rnn_engine.gpu import Buffer, Kernels, Memory
from rnn_engine.quantised import Blocks
from rnn_engine.types import Model
from rnn_engine_shaders import Constant, Include


@dataclass(frozen=True, slots=True)
class CarriedRows:
    """The place of vectors [T, D] in a device buffer of activations, which each layer reads besides its state.

    If a model is cut, they go from the device with the layers before the cut to the one with the layers after it.
    """

    buffer: Buffer
    start: int = 0  # its first float


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The parts from which a model's stages are built: model, device memory, compiled kernels and shared buffers."""

    model: Model
    format_of: FormatOf
    memory: Memory
    matmuls: MatMulKernels
    limits: StepLimits
    buffers: StepBuffers
    state_layout: StateLayout
    states: Sequence[Buffer]  # for each layer [slots, state_layout.stride] f32
    carried: list[CarriedRows] = field(default_factory=list)  # besides the residual stream

    @property
    def has_embedding(self) -> bool:
        """True unless the model is a part of one, after the first."""
        return self.model.has(self.model.shape.tensor_names.embedding)

    @property
    def has_head(self) -> bool:
        """True unless the model is a part of one, before the last."""
        return self.model.has(f"{self.model.shape.tensor_names.head_norm}.weight")

    @property
    def kernels(self) -> Kernels:
        return self.matmuls.kernels

    @property
    def tuning(self) -> Tuning:
        return self.matmuls.tuning

    @property
    def norm_constants(self) -> dict[str, Constant]:
        """The constants of norm.wgsl, except for the number of threads."""
        shape = self.model.shape
        return {"WIDTH": shape.width, "NORM_EPSILON": shape.norm.epsilon, "CENTRES": shape.norm.centres}

    def weights(self, name: str, *, transposed: bool = False) -> SegmentWeights:
        """Return the matrix `name` [R, C], or [C, R] if `transposed`, perhaps in blocks, and its format."""
        matrix, block_type = self.model.matrix(name, transposed=transposed), self.model.block_type(name)
        dtype = np.dtype(np.float32) if isinstance(matrix, Blocks) else matrix.dtype
        return SegmentWeights(matrix, self.format_of(name) or stored_format(dtype, block_type), name)

    def kernel_stage(
        self,
        label: str,
        name: str,
        constants: Mapping[str, Constant],
        buffers: Mapping[str, Buffer],
        workgroups: Callable[[StepSize], tuple[int, int]],
        includes: Mapping[str, Include] | None = None,
        *,
        state_bytes: int = 0,
        waits: int = 0,
    ) -> KernelStage:
        """Return a stage of `name`.wgsl with `buffers` by variable; `workgroups` returns those of a step in x and y."""
        kernel = self.kernels.get(name, {**self.limits.constants(), **constants}, includes)
        bind_group = self.kernels.bind(kernel.source, {"batch": self.buffers.batch, **buffers})
        return KernelStage(label, kernel, bind_group, workgroups, state_bytes, waits)

    def matmul_stage(
        self, label: str, matrices: Sequence[Matrix], vectors: Buffer, inputs: Buffer, outputs: Buffer
    ) -> BoundMatMul:
        """Upload `matrices` and return the stage that multiplies `inputs` by them; `vectors` has the operands."""
        matmul = MatMul(label, matrices, self.matmuls, self.memory)
        return matmul.bind(MatMulBuffers(self.buffers.batch, vectors, inputs, outputs))


@dataclass(frozen=True, slots=True)
class PackedVectors:
    """Several vectors of a model, one after another in one device buffer, so that a kernel binds just that buffer."""

    buffer: Buffer
    starts: Mapping[str, int]  # name -> its first float

    @classmethod
    def load(cls, context: BuildContext, label: str, prefix: str, names: Sequence[str]) -> PackedVectors:
        """Upload the tensors `prefix` plus each of `names`, as far as the model has them, into one device buffer."""
        model = context.model
        return cls.pack(
            context, label, {name: model.tensor(prefix + name) for name in names if model.has(prefix + name)}
        )

    @classmethod
    def pack(cls, context: BuildContext, label: str, vectors: Mapping[str, NDArray[Any]]) -> PackedVectors:
        """Upload `vectors` as f32 into one device buffer, one after another. They may have any float type and shape."""
        flat = {name: vector.astype(np.float32).reshape(-1) for name, vector in vectors.items()}
        ends = np.cumsum([vector.size for vector in flat.values()]).tolist()
        packed = np.concatenate(list(flat.values()))
        buffer = context.memory.create_buffer(label, packed.nbytes, use="weights")
        context.memory.upload(buffer, 0, packed)
        return cls(buffer, dict(zip(flat, [0, *ends], strict=False)))


@dataclass(frozen=True, slots=True)
class NormShift:
    """A norm with the token shift after it, by the names of its vectors and of its field of the state."""

    norm: str  # the norm
    mixes: tuple[str, ...] = ()  # the mixes' vectors, which lie side by side in the layer's vectors
    shift: str | None = None  # the field of the state that holds the normed token before the first one; None: no shift
    keeps_difference: bool = False  # if the difference between each token and the one before it is a plane, too

    def constants(self, context: BuildContext, vectors: PackedVectors) -> dict[str, Constant]:
        """Return the constants that the kernels norm_shift.wgsl and norm_shift_backward.wgsl share."""
        return {"THREADS": context.tuning.norm_threads, **self._planes(), **self._places(context, vectors)}

    def forward_constants(
        self, context: BuildContext, vectors: PackedVectors, *, keeps_mixes: bool = False
    ) -> dict[str, Constant]:
        """Return the constants of norm_inputs.wgsl, and with `keeps_mixes` those of keep_mixes.wgsl."""
        bias = vectors.starts[f"{self.norm}.bias"] if context.model.shape.norm.centres else 0
        places = {**self._places(context, vectors), "NORM_BIAS": bias, "SHIFTS": self.shift is not None}
        return {**self._planes(), **places} if keeps_mixes else places

    def _planes(self) -> dict[str, Constant]:
        return {"MIXES": len(self.mixes) or 1, "KEEPS_DIFFERENCE": self.keeps_difference}

    def _places(self, context: BuildContext, vectors: PackedVectors) -> dict[str, Constant]:
        return {
            **context.norm_constants,
            "STATE_STRIDE": context.state_layout.stride,
            "SHIFT_OFFSET": 0 if self.shift is None else context.state_layout.offsets[self.shift],
            "MIX": vectors.starts[self.mixes[0]] if self.mixes else 0,
            "NORM_WEIGHT": vectors.starts[f"{self.norm}.weight"],
        }


def norm_shift_stage(
    context: BuildContext,
    layer: int,
    label: str,
    vectors: PackedVectors,
    norm_shift: NormShift,
    outputs: Buffer,
    x: Buffer | None = None,
) -> KernelStage:
    """Return the stage of a norm and token shift; `outputs` is [mixes, max_tokens, D], with one more plane if kept.

    `x` [T, D] is the norm's input, by default the residual stream.
    """
    buffers = {"x": x or context.buffers.x, "vectors": vectors.buffer, "state": context.states[layer], "mixes": outputs}
    return context.kernel_stage(
        label,
        "norm_shift",
        {**norm_shift.constants(context, vectors), **norm_shift.forward_constants(context, vectors)},
        buffers,
        lambda step: (step.num_tokens, 1),
        state_bytes=4 * context.model.shape.width,
    )
