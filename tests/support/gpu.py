"""Runners on a GPU with checked shaders, with the choices for a software device or for a hardware one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import pytest
import wgpu

from rnn_engine.forward import GpuRunner
from rnn_engine.forward.loras import pairs_for
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.step import StepLimits
from rnn_engine.forward.tuning import Tuning, tuning_for
from rnn_engine.forward.variants import StreamVariant
from rnn_engine.forward.weight_choice import FormatOf, parse_weights
from rnn_engine.gpu import Device, DeviceInfo, measure_subgroup_size, open_device
from rnn_engine.gpu.device import choose_adapter
from rnn_engine.gpu.sizing import LEAST_LIMITS
from rnn_engine.types import NO_LORAS, LoraRoom, Model
from rnn_engine.versions.shared.layout import HeadsShape
from rnn_engine.versions.table import VERSIONS

KINDS = ("software", "discrete")
eight_lanes = pytest.mark.eight_lanes
SHARING_KINDS = (pytest.param("software", marks=eight_lanes), "discrete")
"""The same kinds, for tests of the kernels in which eight lanes of a software device share what they load."""
TOKEN_ROOM, ROW_ROOM = 640, 64
"""What runners and trainers have room for, whatever their limits, since kernels are compiled anew for other room."""
_SMALL_HEAD = 32  # software devices compile a recurrence of larger heads for so long that one kernel is enough


class _LeastAdapter:
    """An adapter as if it had no features and no more than WebGPU's least limits."""

    features = frozenset[str]()
    limits = LEAST_LIMITS

    def __init__(self, adapter: wgpu.GPUAdapter) -> None:
        self.request_device_sync = adapter.request_device_sync


@cache
def open_least() -> Device:
    """Return a device on which wgpu refuses all that not every device of WebGPU can do."""
    info, adapter = choose_adapter("auto")
    return Device(info, cast("wgpu.GPUAdapter", _LeastAdapter(adapter)), checked=True)


def open_checked(kind: str) -> tuple[Device, Tuning]:
    """Return the first device of this machine, with the tuning for devices of `kind` even if it is of another.

    Kernels for hardware load fewer numbers at once than there, since software devices compile long loop bodies slowly.
    The kind "least" is hardware of Intel with no more than all devices of WebGPU have.
    """
    is_least = kind == "least"
    device = open_least() if is_least else open_device(checked=True)
    can_broadcast = not is_least and measure_subgroup_size(device) >= 8
    name, kind = ("an Intel GPU", "integrated") if is_least else ("any", kind)
    info = DeviceInfo(0, name, kind, "any", "any")
    tuning = tuning_for(info, can_broadcast=can_broadcast)
    return device, replace(
        tuning,
        matmuls=_shorter(tuning.matmuls),
        blocks=_shorter(tuning.blocks),
        packed=_shorter(tuning.packed),
        normed=_shorter(tuning.normed),
        adapter_loads=min(2, tuning.adapter_loads),
        candidate_loads=min(4, tuning.candidate_loads),
    )


def _shorter(variants: Sequence[StreamVariant]) -> tuple[StreamVariant, ...]:
    return tuple(replace(variant, unroll=min(2, variant.unroll)) for variant in variants)


def make_gpu_runner(
    model: Model,
    *,
    num_slots: int,
    max_tokens: int,
    max_rows: int,
    num_candidates: int,
    kind: str = "software",
    weights: str | FormatOf = "f32",
    max_binding_bytes: int | None = None,
    max_buffer_bytes: int | None = None,
    lora_room: LoraRoom = NO_LORAS,
) -> GpuRunner:
    """Return a runner. Its buffers have more room than the limits allow, unless they have bounds of their own."""
    device, tuning = open_checked(kind)
    if isinstance(model.shape, HeadsShape) and model.shape.head_size > _SMALL_HEAD:
        tuning = replace(tuning, adapter_loads=0)
    memory = device.allocate()
    if max_binding_bytes is not None:
        memory.max_binding_bytes = max_binding_bytes
    memory.max_buffer_bytes = max_buffer_bytes or memory.max_buffer_bytes
    format_of, activations = parse_weights(weights, model.shape)
    has_room = max_binding_bytes is None and max_buffer_bytes is None
    limits = StepLimits(
        num_slots,
        max(max_tokens, TOKEN_ROOM) if has_room else max_tokens,
        max(max_rows, ROW_ROOM) if has_room else max_rows,
        min(num_candidates, model.shape.vocab_size),
        num_penalty_slots=num_slots,
    )
    runner = GpuRunner(
        model,
        VERSIONS.get(model.shape.version).load_layers,
        device,
        memory,
        MatMulKernels(device.kernels, tuning, limits, activations=activations, pairs=pairs_for(lora_room)),
        format_of=format_of,
        limits=limits,
        progress=lambda what, done, total: None,
        lora_room=lora_room,
    )
    runner.max_tokens, runner.max_rows = max_tokens, max_rows
    return runner
