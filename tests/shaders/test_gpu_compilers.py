"""What compilers of GPUs make of the kernels that hardware runs; needs a C compiler and Mesa's drivers."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from rnn_engine.forward.cost import MULTIPLYING, UNPACKING
from tools.gpu_compilers import INTEL, MESA_FOLDER, UNPACKED, Compiled, UnavailableError, chosen_kernels, compile_for

DECODE = "stream 1t 1g 1p 16s 4u direct f32"  # the matmul of a step of one token
DECODE_ON_INTEL = ("stream 1t 1g 1p 16s 2u direct f32", "stream 1t 1g 1p 32s 2u direct f32")
NORMED = "stream 1t 1g 4p 32s 2u normed f32, f16"
OF_BYTES = "stream 1t 1g 1p 16s 2u direct int8, int8"
CANDIDATES = ("candidates, 22 of 65536", "candidates, 1 of 65536", "candidates, 1 of 4096")
RECURRENCE = "wkv7, v7"
RECURRENCES = (RECURRENCE, "wkv5, v")


@pytest.fixture(scope="module")
def kernels() -> Mapping[str, str]:
    return chosen_kernels()


@pytest.fixture(scope="module")
def on_navi31(kernels: Mapping[str, str]) -> Mapping[str, Compiled]:
    """Return what the compiler says, with loops, of the kernels that tests look into, by name."""
    names = (*(f"{DECODE}, {weights}" for weights in UNPACKING), NORMED, OF_BYTES, *CANDIDATES, RECURRENCE)
    rolled = kernels[f"{DECODE}, f16"].replace("const UNROLL = 4u;", "const UNROLL = 1u;")
    return compiled("navi31", {**{name: kernels[name] for name in names}, "rolled": rolled})


def compiled(
    family: str, kernels: Mapping[str, str], *, with_loops: bool = True, trusted: bool = False
) -> dict[str, Compiled]:
    try:
        return compile_for(family, kernels, with_loops=with_loops, trusted=trusted)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("family", ["vega10", "navi21"])  # of both kinds those with the fewest registers
def test_no_kernel_keeps_registers_in_memory(family: str, kernels: Mapping[str, str]) -> None:
    assert len(kernels) > 90
    found = compiled(family, kernels, with_loops=False)
    assert {name: kernel for name, kernel in found.items() if kernel.spilled or kernel.scratch_bytes} == {}
    if family.startswith("navi"):  # their SIMD units hold many waves, which hide the latency of memory
        recurrences = {name: kernel.waves for name, kernel in found.items() if name.startswith(RECURRENCES)}
        assert {name: waves for name, waves in recurrences.items() if waves < 12} == {}


@pytest.mark.parametrize("family", INTEL)
def test_no_kernel_keeps_registers_in_memory_on_intel(family: str) -> None:
    formats = (", f16", ", int8", ", q4_k", "q6_k and f16", "f16, mixes kept", "q6_k, mixes kept")
    chosen = {
        name: text
        for name, text in chosen_kernels(family).items()
        if not name.startswith("stream") or name.endswith(formats)
    }
    found = compiled(family, chosen, with_loops=False)
    assert len(found) > 60
    assert {name: kernel for name, kernel in found.items() if kernel.spilled or kernel.scratch_bytes} == {}


@pytest.mark.parametrize("family", INTEL)
def test_decode_products_for_intel_keep_64_bytes_on_their_way(family: str) -> None:
    chosen = {name: text for name, text in chosen_kernels(family).items() if name.startswith(DECODE_ON_INTEL)}
    assert len(chosen) > 19
    for name, kernel in compiled(family, chosen).items():
        assert kernel.loop is not None
        assert kernel.loop.bytes_in_flight >= 64, name
        assert kernel.loop.loads >= 6, name


KEPT_ELSEWHERE = {
    ("adreno-660", False): ("wkv7", "wkv_decay_backward"),  # wkv7 with ranks as large as those of 7.2B, 5 and 12
    ("adreno-660", True): ("wkv7", "wkv_decay_backward"),
    ("adreno-740", False): ("wkv_decay_backward",),
    ("adreno-740", True): ("wkv_decay_backward",),
    ("m1", True): ("matmul_transposed",),  # without checks of bounds, which wgpu can't leave out
}
"""Kernels, by a part of their names, that keep registers in memory on other GPUs."""


@pytest.mark.skipif(MESA_FOLDER not in os.environ, reason="`make gpu-compilers` unpacks these drivers")
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("family", UNPACKED)
def test_kernels_keep_registers_in_memory_only_where_that_is_known_in_drivers_that_are_unpacked(
    family: str, trusted: bool
) -> None:
    found = compiled(family, chosen_kernels(family), with_loops=False, trusted=trusted)
    assert all(kernel.instructions > 0 for kernel in found.values())
    wrong = {name for name, kernel in found.items() if kernel.spilled or kernel.scratch_bytes}
    known = KEPT_ELSEWHERE.get((family, trusted), ())
    assert {name for name in wrong if not any(part in name for part in known)} == set()
    assert all(any(part in name for name in wrong) for part in known)


def test_a_decode_product_asks_for_four_blocks_of_weights_before_it_waits(on_navi31: Mapping[str, Compiled]) -> None:
    fast, one = on_navi31[f"{DECODE}, f16"].loop, on_navi31["rolled"].loop
    assert fast is not None
    assert one is not None
    assert (one.loads, one.bytes_in_flight) == (3, 48)  # 16 bytes of weights, and two of inputs
    assert fast.loads == 4 * one.loads
    assert fast.bytes_in_flight >= 64 + 32
    assert fast.instructions < 4 * one.instructions


def test_a_matmul_that_norms_its_inputs_asks_for_as_many_weights_in_fewer_instructions(
    on_navi31: Mapping[str, Compiled],
) -> None:
    plain, normed = on_navi31[f"{DECODE}, f16"].loop, on_navi31[NORMED].loop
    assert plain is not None
    assert normed is not None
    assert normed.bytes_in_flight == 8 * 16
    assert normed.instructions / 8 < plain.instructions / 4


@pytest.mark.parametrize("weights", UNPACKING)
def test_the_instructions_of_the_model_of_cost_are_those_of_the_compiler(
    on_navi31: Mapping[str, Compiled], weights: str
) -> None:
    """A look-up in workgroup memory counts as two."""
    loop = on_navi31[f"{DECODE}, {weights}"].loop
    assert loop is not None
    counted = (loop.vector + 2 * loop.workgroup_loads) / 4
    assert counted == pytest.approx(UNPACKING[weights] + MULTIPLYING["f32"], rel=0.1)


def test_products_of_bytes_ask_for_two_blocks_of_weights_before_they_wait(on_navi31: Mapping[str, Compiled]) -> None:
    loop = on_navi31[OF_BYTES].loop
    assert loop is not None
    assert loop.bytes_in_flight >= 2 * 32
    assert loop.vector / 8 == pytest.approx(5 + MULTIPLYING["int8"], rel=0.1)


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_load_logits_once_and_not_in_a_loop(on_navi31: Mapping[str, Compiled], name: str) -> None:
    loop = on_navi31[name].loop
    assert loop is not None
    assert loop.loads <= 3  # of ids, where logits are equal
    assert loop.instructions < 100


def test_a_recurrence_keeps_its_state_in_registers_that_the_code_names(on_navi31: Mapping[str, Compiled]) -> None:
    kernel = on_navi31[RECURRENCE]
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
