"""Predicted times of kernels: what bounds them, the figures of GPUs, and a check with published speeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rnn_engine.forward.cost import (
    DISPATCH,
    GPUS,
    LATENCY,
    NORM_WAITS,
    NOT_HIDDEN,
    REACHED,
    UNPACKING,
    Gpu,
    HardwareCost,
    cost_on,
    describe_cost,
    gpu_of,
)
from rnn_engine.forward.tuning import MatMulClass, tuning_for
from rnn_engine.forward.variants import MatMulWork, StreamVariant
from rnn_engine.forward.weight_formats import STORED_FORMATS, WEIGHT_FORMATS
from rnn_engine.gpu import DeviceInfo

LARGE = MatMulWork(65536, 4096, 2 * 65536 * 4096, 1)
STREAM = StreamVariant(1, splits=16, unroll=4)


def gpu(name: str) -> Gpu:
    (found,) = (each for each in GPUS if each.name == name)
    return found


def device(name: str, kind: str = "discrete") -> DeviceInfo:
    return DeviceInfo(0, name, kind, "Vulkan", "any")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "Radeon RX 7900 XTX"),
        ("AMD Radeon RX 7900 XT (RADV NAVI31)", None),
        ("AMD Radeon 780M Graphics (RADV PHOENIX)", "Radeon 780M"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3060 Ti", None),
        ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", "Arc B580"),
        ("Intel(R) Iris(R) Xe Graphics (TGL GT2)", "Iris Xe"),
        ("Apple M2", "Apple M2"),
        ("Apple M2 Ultra", "Apple M2 Ultra"),
        ("Apple M2 Pro", None),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", None),
    ],
)
def test_a_gpu_is_found_by_the_name_of_its_device(name: str, found: str | None) -> None:
    gpu = gpu_of(device(name))
    assert (gpu and gpu.name) == found
    cost = cost_on(device(name))
    assert isinstance(cost, HardwareCost)
    assert cost.gpu.name == (found or "GeForce RTX 3060")
    assert cost.gpu.name in describe_cost(device(name))
    assert ("since" in describe_cost(device(name))) == (not found)


@pytest.mark.parametrize("each", GPUS, ids=lambda each: each.name)
def test_a_large_matrix_takes_the_time_of_its_bytes(each: Gpu) -> None:
    least = DISPATCH + LARGE.weight_bytes / (REACHED * each.memory)
    assert least < HardwareCost(each).predict(LARGE, STREAM) < (1 + NOT_HIDDEN) * least


def test_a_small_matrix_waits_for_too_few_bytes_in_flight() -> None:
    """Of 256 rows on 96 units: 32 workgroups of 128 threads, of which each asks for 64 bytes at once."""
    work = MatMulWork(256, 65536, 2 * 256 * 65536, 1)
    expected = DISPATCH + work.weight_bytes * LATENCY / (32 * 128 * 64)
    assert HardwareCost(gpu("Radeon RX 7900 XTX")).predict(work, STREAM) == pytest.approx(expected, rel=0.05)
    once = HardwareCost(gpu("Radeon RX 7900 XTX")).predict(work, replace(STREAM, unroll=1))
    assert once - DISPATCH == pytest.approx(4 * (expected - DISPATCH), rel=0.05)


@pytest.mark.parametrize("rows", [512, 6720])
@pytest.mark.parametrize("name", ["Radeon RX 7900 XTX", "Radeon 780M"])
def test_a_norm_within_a_matmul_takes_less_than_a_dispatch_before_it(name: str, rows: int) -> None:
    work = MatMulWork(rows, 2048, 2 * rows * 2048, 1)
    tuning, kind = tuning_for(device("any"), can_broadcast=True), MatMulClass.of("f16", rows, 2048)
    normed = tuning.normed_matmul(kind)
    stored = replace(normed, inputs="direct")
    cost = HardwareCost(gpu(name))
    assert NORM_WAITS * LATENCY < cost.predict(work, normed) - cost.predict(work, stored) < DISPATCH
    assert cost.predict(work, normed) < cost.predict(work, tuning.matmul(1, kind)) + DISPATCH


def test_a_format_of_many_instructions_waits_for_them() -> None:
    slow = replace(gpu("Radeon RX 7900 XTX"), clock=2.5e8)
    work = replace(LARGE, weight_bytes=LARGE.weight_bytes // 4)
    few, many = (HardwareCost(slow).predict(replace(work, weights=name), STREAM) for name in ("int4", "nf4"))
    assert many > 1.5 * few


def test_every_weight_format_has_its_instructions() -> None:
    assert UNPACKING.keys() == STORED_FORMATS.keys()


@pytest.mark.parametrize("weights", ["f16", "int8", "int4", "q4_0", "nf4"])
@pytest.mark.parametrize(("rows", "columns"), [(1024, 1024), (4096, 1024), (1024, 4096), (2048, 2048)])
def test_fixed_choices_keep_the_memory_busy(weights: str, rows: int, columns: int) -> None:
    """On 960 GB/s with 96 units, and on about 100 GB/s with 12; matrices of 400 million parameters and more."""
    kind = WEIGHT_FORMATS[weights]
    num_bytes = rows * columns * sum(kind.block_bytes.values()) // kind.block_columns
    tuning = tuning_for(device("any"), can_broadcast=True)
    variant = tuning.blocks[0] if kind.codes or weights == "int8" else tuning.matmuls[0]
    for name in ("Radeon RX 7900 XTX", "Radeon 780M"):
        seconds = HardwareCost(gpu(name)).predict(MatMulWork(rows, columns, num_bytes, 1, weights), variant)
        assert num_bytes / (seconds - DISPATCH) >= 0.8 * gpu(name).memory


# Tokens a second of Llama 7B, one at a time, by llama.cpp on Metal with weights of 12.55, 6.67 and 3.56 GiB (F16, Q8_0
# and Q4_0), and the memory's published rate: gist.github.com/andrewginns/cf95867c2d79458bd894c07b9e7d5cbd, measured as
# discussion 4167 of llama.cpp's repository asks for.
_PUBLISHED = {"M1 Pro, 14 cores": (200e9, (12.75, 21.95, 35.52)), "M3 Pro, 18 cores": (150e9, (9.89, 17.53, 30.74))}
_BYTES = (12.55 * 2**30, 6.67 * 2**30, 3.56 * 2**30)


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_speeds_of_another_engine_have_the_form_of_the_prediction(name: str) -> None:
    """A token takes its bytes at some rate, and a time that does not depend on them.

    Both are computed from F16 and Q4_0; then Q8_0 follows, and the rate is at least `REACHED` of the published one.
    """
    memory, speeds = _PUBLISHED[name]
    whole, half, quarter = (1 / speed for speed in speeds)
    rate = (_BYTES[0] - _BYTES[2]) / (whole - quarter)
    fixed = whole - _BYTES[0] / rate
    assert fixed + _BYTES[1] / rate == pytest.approx(half, rel=0.02)
    assert REACHED <= rate / memory < 1
