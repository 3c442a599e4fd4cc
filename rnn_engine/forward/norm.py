"""Layer norm and token shift, with which the time mix and the channel mix of every layer begin."""

from __future__ import annotations

from rnn_engine.forward.context import BuildContext, PackedVectors
from rnn_engine.forward.stages import KernelStage
from rnn_engine.gpu import Buffer


def norm_shift_stage(
    context: BuildContext,
    layer: int,
    label: str,
    vectors: PackedVectors,
    *,
    norm: str,
    mixes: tuple[str, ...],
    shift: str,
    outputs: Buffer,
    keeps_difference: bool = False,
) -> KernelStage:
    """The stage that fills `outputs` [len(mixes), max_tokens, D] with the normed tokens, mixed with those before them.

    `norm` is the layer norm's name in `vectors`, `mixes` are the vectors of the mixes, which lie side by side there,
    and `shift` is the state's field with the normed token before the first. The difference from each token to the one
    before it is kept in a plane of its own, after the mixes, where `keeps_difference` says so.
    """
    width = context.model.shape.width
    constants = {
        "THREADS": context.tuning.norm_threads,
        "WIDTH": width,
        "STATE_STRIDE": context.state_layout.stride,
        "SHIFT_OFFSET": context.state_layout.offsets[shift],
        "MIXES": len(mixes),
        "MIX": vectors.starts[mixes[0]],
        "KEEPS_DIFFERENCE": keeps_difference,
        "NORM_WEIGHT": vectors.starts[f"{norm}.weight"],
        "NORM_BIAS": vectors.starts[f"{norm}.bias"],
    }
    buffers = {
        "x": context.buffers.x,
        "vectors": vectors.buffer,
        "state": context.states[layer],
        "mixes": outputs,
    }
    return context.kernel_stage(
        label, "norm_shift", constants, buffers, lambda step: (step.num_tokens, 1), state_bytes=4 * width
    )
