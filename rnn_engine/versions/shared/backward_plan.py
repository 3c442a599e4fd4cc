"""Functions with which the versions build the backward stages of a layer on a device."""

from __future__ import annotations

from rnn_engine.backward.context import BackwardContext
from rnn_engine.backward.matmul import TransposedMatMul
from rnn_engine.forward.context import NormShift
from rnn_engine.forward.matmul import BoundMatMul
from rnn_engine.forward.stages import KernelStage
from rnn_engine.gpu import Buffer
from rnn_engine.versions.shared.plan import LayerBuilder


def norm_shift_backward(
    context: BackwardContext, builder: LayerBuilder, what: str, norm_shift: NormShift, x: Buffer, d_mixes: Buffer
) -> KernelStage:
    """Return the stage that adds the gradient through one of the layer's norms and its token shift to `context.dx`.

    `x` is the input of the norm. `d_mixes` has the gradients of its mixes, in the layout of the mixes.
    """
    constants = {**norm_shift.constants(context.forward, builder.vectors), "TRAINS_SHIFT": context.trains_shifts}
    buffers = {
        "x": x,
        "vectors": builder.vectors.buffer,
        "d_mixes": d_mixes,
        "dx": context.dx,
        "state_gradients": context.state_gradients,
    }
    return context.forward.kernel_stage(
        builder.label(f"{what}, backward"), "norm_shift_backward", constants, buffers, lambda step: (step.num_tokens, 1)
    )


def matmul_backward(
    context: BackwardContext,
    forward: BoundMatMul,
    output_gradients: Buffer,
    input_gradients: Buffer,
    inputs: Buffer | None = None,
) -> TransposedMatMul:
    """Return the stage that computes the gradients of the inputs of the stage `forward`.

    `inputs`, which `forward` reads, are needed if an activation has made them; the gradients are those of its argument.
    """
    return TransposedMatMul.of(
        forward,
        context.forward.memory,
        output_gradients=output_gradients,
        input_gradients=input_gradients,
        inputs=inputs,
    )


def keep_input(context: BackwardContext, kept: Buffer) -> KernelStage:
    """Return the stage that copies the residual stream to `kept` [T, D]."""
    forward = context.forward
    constants = {"THREADS": forward.tuning.norm_threads, "WIDTH": forward.model.shape.width, "START": 0}
    kernel = forward.kernels.get("keep_embedding", constants)
    bind_group = forward.kernels.bind(kernel.source, {"x": forward.buffers.x, "kept": kept})
    return KernelStage("keep the layer's input", kernel, bind_group, lambda step: (step.num_tokens, 1))
