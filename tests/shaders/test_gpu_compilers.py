"""What compilers of AMD GPUs make of the kernels that hardware runs; needs a C compiler and Mesa's driver for AMD."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rnn_engine.forward.cost import MULTIPLYING, UNPACKING
from tools.gpu_compilers import FAMILIES, Compiled, UnavailableError, chosen_kernels, compile_for


@pytest.fixture(scope="module")
def kernels() -> Mapping[str, str]:
    return chosen_kernels()


def compiled(family: str, kernels: Mapping[str, str], *, with_loops: bool = True) -> dict[str, Compiled]:
    try:
        return compile_for(family, kernels, with_loops=with_loops)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_kernel_keeps_registers_in_memory(family: str, kernels: Mapping[str, str]) -> None:
    assert len(kernels) > 90
    found = compiled(family, kernels, with_loops=False)
    assert {name: kernel for name, kernel in found.items() if kernel.spilled or kernel.scratch_bytes} == {}


def test_a_decode_product_asks_for_four_blocks_of_weights_before_it_waits(kernels: Mapping[str, str]) -> None:
    text = kernels["stream 1t 1g 1p 16s 4u direct f32, f16"]
    found = compiled("navi31", {"four": text, "one": text.replace("const UNROLL = 4u;", "const UNROLL = 1u;")})
    fast, one = found["four"].loop, found["one"].loop
    assert fast is not None
    assert one is not None
    assert (one.loads, one.bytes_in_flight) == (3, 48)  # 16 bytes of weights, and two of inputs
    assert fast.loads == 4 * one.loads
    assert fast.bytes_in_flight >= 64 + 32
    assert fast.instructions < 4 * one.instructions


def test_a_matmul_that_norms_its_inputs_asks_for_as_many_weights_in_fewer_instructions(
    kernels: Mapping[str, str],
) -> None:
    names = {"plain": "stream 1t 1g 1p 16s 4u direct f32, f16", "normed": "stream 1t 1g 4p 32s 2u normed f32, f16"}
    found = compiled("navi31", {label: kernels[name] for label, name in names.items()})
    plain, normed = found["plain"].loop, found["normed"].loop
    assert plain is not None
    assert normed is not None
    assert normed.bytes_in_flight == 8 * 16
    assert normed.instructions / 8 < plain.instructions / 4


def test_the_instructions_of_the_model_of_cost_are_those_of_the_compiler(kernels: Mapping[str, str]) -> None:
    """A look-up in workgroup memory counts as two."""
    names = {weights: f"stream 1t 1g 1p 16s 4u direct f32, {weights}" for weights in UNPACKING}
    found = compiled("navi31", {weights: kernels[name] for weights, name in names.items()})
    for weights, kernel in found.items():
        assert kernel.loop is not None
        counted = (kernel.loop.vector + 2 * kernel.loop.workgroup_loads) / 4
        assert counted == pytest.approx(UNPACKING[weights] + MULTIPLYING["f32"], rel=0.1), weights


def test_products_of_bytes_ask_for_two_blocks_of_weights_before_they_wait(kernels: Mapping[str, str]) -> None:
    (kernel,) = compiled("navi31", {"": kernels["stream 1t 1g 1p 16s 2u direct int8, int8"]}).values()
    assert kernel.loop is not None
    assert kernel.loop.bytes_in_flight >= 2 * 32
    assert kernel.loop.vector / 8 == pytest.approx(5 + MULTIPLYING["int8"], rel=0.1)


def test_candidates_ask_for_32_logits_at_once(kernels: Mapping[str, str]) -> None:
    (kernel,) = compiled("navi31", {"": kernels["candidates, v7"]}).values()
    assert kernel.loop is not None
    assert kernel.loop.bytes_in_flight == 32 * 4


def test_a_recurrence_keeps_its_state_in_registers_that_the_code_names(kernels: Mapping[str, str]) -> None:
    (kernel,) = compiled("navi31", {"wkv7": kernels["wkv7, v7"]}).values()
    assert kernel.instructions < 1150
    # A loop over the state's parts would be within that over tokens, and would load nothing from device memory.
    assert kernel.loop is not None
    assert kernel.loop.loads > 0


def test_an_array_that_is_indexed_in_memory_is_found() -> None:
    text = """
        @group(0) @binding(0) var<storage, read_write> numbers: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) thread: u32) {
            var kept: array<u32, 300>;
            for (var i = 0u; i < 300u; i++) { kept[numbers[i] % 300u] = numbers[i + thread]; }
            for (var i = 0u; i < 300u; i++) { numbers[i] += kept[(i + numbers[thread]) % 300u]; }
        }
    """
    (kernel,) = compiled("navi31", {"wrong": text}, with_loops=False).values()
    assert kernel.scratch_bytes > 0
