"""The logarithm of decays near 1, which the gradients of decays are multiplied by, has no great relative error."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import wgpu

from rnn_engine.gpu import open_device

KERNEL = """
    @group(0) @binding(0) var<storage, read_write> numbers: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) thread: u32) {
        numbers[thread] = log_near_one(numbers[thread]);
    }
"""


def test_the_logarithm_of_a_decay_near_one_has_a_small_relative_error() -> None:
    decays = (1.0 - np.logspace(-7, np.log10(0.4), 64)).astype(np.float32)
    function = (files("rnn_engine_shaders") / "log_near_one.wgsl").read_text("utf-8")
    device = open_device(checked=True).wgpu_device
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = device.create_buffer_with_data(data=decays, usage=usage)
    module = device.create_shader_module(code=function + KERNEL)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entry = {"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": decays.nbytes}}
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=[entry])
    encoder = device.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, group)
    work.dispatch_workgroups(1)
    work.end()
    device.queue.submit([encoder.finish()])
    found = np.frombuffer(device.queue.read_buffer(buffer), np.float32)
    np.testing.assert_allclose(found, np.log(decays.astype(np.float64)), rtol=1e-5)
