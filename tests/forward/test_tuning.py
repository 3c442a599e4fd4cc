"""The amount of work in a step, by the kind of device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rnn_engine.forward.tuning import MatMulClass, Tuning, tuning_for
from rnn_engine.forward.variants import KernelLimits, StreamVariant, TiledVariant
from rnn_engine.gpu import DeviceInfo
from tests.support.models import tiny_shape


def tuning_of(kind: str) -> Tuning:
    return tuning_for(DeviceInfo(0, "any", kind, "any", "any"), can_broadcast=True)


@pytest.mark.parametrize(("kind", "tokens"), [("software", 64), ("integrated", 256), ("discrete", 256)])
def test_a_small_model_takes_as_many_tokens_as_a_step_may_have(kind: str, tokens: int) -> None:
    assert tuning_of(kind).step_tokens(tiny_shape()) == tokens


@pytest.mark.parametrize(("kind", "tokens"), [("software", 16), ("integrated", 48), ("discrete", 256)])
def test_a_large_model_takes_fewer_so_that_no_submit_is_long(kind: str, tokens: int) -> None:
    shape = tiny_shape(layers=32, width=2560, head_size=64, vocab=65536)
    assert tuning_of(kind).step_tokens(shape) == tokens


@pytest.mark.parametrize("kind", ["software", "integrated", "other", "discrete"])
def test_the_smallest_variant_that_takes_all_tokens_is_chosen(kind: str) -> None:
    tuning = tuning_of(kind)
    for count in range(1, 17):
        variant = tuning.matmul(count)
        assert isinstance(variant, StreamVariant)
        assert variant.tokens >= min(count, tuning.matmuls[-1].tokens)
        assert all(other.tokens < count for other in tuning.matmuls if other.tokens < variant.tokens)
        assert KernelLimits(can_broadcast=True).allow(variant)
    assert isinstance(tuning.matmul(17), StreamVariant if kind == "software" else TiledVariant)


def test_weights_in_blocks_are_multiplied_by_parts_on_a_software_device() -> None:
    tuning = tuning_of("software")
    shared = StreamVariant(tokens=8, panels=4, inputs="by_token")
    alone = StreamVariant(tokens=8, panels=4, inputs="broadcast", by_parts=True)
    for weights, variant in (("f16", shared), ("bf16", shared), ("int8", alone), ("q4_0", alone)):
        assert tuning.matmul(8, MatMulClass(weights, 1024, 1024)) == variant
        assert tuning.matmul(64, MatMulClass(weights, 64, 64)) == variant


def test_few_rows_are_divided_among_more_threads_on_hardware() -> None:
    tuning = tuning_of("discrete")
    for weights in ("f16", "int4"):
        few, many = (tuning.matmul(1, MatMulClass(weights, rows, 1024)) for rows in (512, 1024))
        assert few.threads == 2 * many.threads
        assert KernelLimits().allow(few)
        assert tuning.matmul(2, MatMulClass(weights, 512, 1024)) == tuning.matmul(2, MatMulClass(weights, 1024, 1024))
    assert tuning.matmul(1, MatMulClass("int8", 512, 1024, "int8")) == tuning.packed[0]


def test_what_was_found_for_a_class_and_a_count_goes_before_the_fixed_choice() -> None:
    kind, found = MatMulClass("f16", 1024, 256), TiledVariant(rows=32, tokens=32)
    tuning = replace(tuning_of("discrete"), found={(kind, 32): found})
    assert tuning.matmul(17, MatMulClass.of("f16", 960, 129)) == tuning.matmul(32, kind) == found
    for count, other in ((16, kind), (33, kind), (32, MatMulClass("int8", 1024, 256)), (32, None)):
        assert tuning.matmul(count, other) == tuning_of("discrete").matmul(count)
    assert tuning.token_counts(20) == {1, 2, 4, 8, 16, 20}
    assert 32 in tuning.token_counts(64)


@pytest.mark.parametrize(
    ("name", "floats", "blocks"),
    [
        ("Intel(R) Arc(tm) A770 Graphics (DG2)", 2, 2),
        ("Mesa Intel(R) UHD Graphics 620 (KBL GT2)", 2, 2),
        ("Mali-G610", 4, 4),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 4, 8),
        ("NVIDIA GeForce RTX 4090", 4, 8),
        ("Apple M1", 4, 8),
    ],
)
def test_as_many_weights_are_asked_for_as_a_vendors_compiler_has_registers_for(
    name: str, floats: int, blocks: int
) -> None:
    tuning = tuning_for(DeviceInfo(0, name, "discrete", "Vulkan", "any"), can_broadcast=True)
    for weights, unroll in (("f16", floats), ("q4_k", blocks)):
        variant = tuning.fixed_matmul(1, MatMulClass(weights, 1024, 1024))
        assert isinstance(variant, StreamVariant)
        assert variant.unroll == unroll
    assert tuning.transposed.tokens == (4 if "Intel" in name or "Apple" in name else 8)
