"""The search for kernels: the variants that it tries, its end, and its choice. All tests except one fake its clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from rnn_engine.errors import DeviceError
from rnn_engine.forward import GpuRunner
from rnn_engine.forward.cost import cost_on
from rnn_engine.forward.matmul import MatMulKernels
from rnn_engine.forward.tuner import KernelTuner, _Task
from rnn_engine.forward.tuning import TOKEN_COUNTS, MatMulClass
from rnn_engine.forward.variants import KernelLimits, MatMulVariant, MatMulWork, StreamVariant, variants
from rnn_engine.gpu import DeviceInfo
from rnn_engine.types import TokenRun, run_step
from tests.support.models import random_model, tiny_shape
from tests.support.tuned import load_with_matmuls

LIMITS = KernelLimits(can_broadcast=True)
FAST = StreamVariant(tokens=1, groups=1, panels=4, inputs="broadcast")


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[GpuRunner, MatMulKernels]]:
    runner, matmuls = load_with_matmuls(random_model(tiny_shape(), seed=3))
    with closing(runner):
        yield runner, matmuls


class Timed:
    """The time of each variant, in place of a measurement. A second passes with each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[MatMulVariant], float]) -> None:
        self.now = 0.0
        self.tried: list[tuple[MatMulClass, int, MatMulVariant]] = []

        def measure(_self: object, task: _Task, variant: MatMulVariant) -> float:
            self.now += 1
            self.tried.append((task.kind, task.tokens, variant))
            return seconds(variant)

        monkeypatch.setattr("rnn_engine.forward.tuner._Measure.__call__", measure)

    def clock(self) -> float:
        return self.now


def silent(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def one_fast(variant: MatMulVariant) -> float:
    return 1e-3 if variant == FAST else 2e-3


def test_the_fastest_is_found_for_each_class_beside_the_fixed_choice(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(monkeypatch, one_fast)
    found = KernelTuner(*loaded, LIMITS, counts=(1,)).search(1e6, silent, clock=timed.clock)
    assert found
    for (kind, tokens), choice in found.items():
        assert (choice.kind, choice.tokens, choice.variant) == (kind, tokens, FAST)
        assert (choice.measured, choice.default_measured, choice.gain) == (1e-3, 2e-3, 2.0)
        assert choice.default == loaded[1].tuning.matmul(1)
    assert len(set(timed.tried)) > 10 * len(found)


def test_matmuls_that_norm_a_single_token_are_left_out_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    normed = StreamVariant(tokens=1, splits=2, inputs="normed")
    runner, matmuls = load_with_matmuls(random_model(tiny_shape(), seed=3), normed=normed)
    timed = Timed(monkeypatch, one_fast)
    with closing(runner):
        found = KernelTuner(runner, matmuls, LIMITS, counts=(1, 2)).search(1e6, silent, clock=timed.clock)
    keys = {part.kind for matmul in matmuls.bound if matmul.label.endswith("key") for part, _ in matmul.parts}
    values = {part.kind for matmul in matmuls.bound if matmul.label.endswith("value") for part, _ in matmul.parts}
    assert {(kind, 1) in found for kind in keys} == {False}
    assert {(kind, 2) in found for kind in keys} == {(kind, 1) in found for kind in values} == {True}


def test_a_gain_that_could_be_chance_leaves_the_fixed_choice(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(monkeypatch, lambda variant: 0.98e-3 if variant == FAST else 1e-3)
    found = KernelTuner(*loaded, LIMITS, counts=(1,)).search(1e6, silent, clock=timed.clock)
    assert {choice.variant for choice in found.values()} == {loaded[1].tuning.matmul(1)}
    assert {choice.gain for choice in found.values()} == {1.0}


@pytest.mark.parametrize("seconds", [1, 20])
def test_the_search_ends_in_its_time(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    timed = Timed(monkeypatch, one_fast)
    shown: list[int] = []
    found = KernelTuner(*loaded, LIMITS).search(seconds, lambda _, done, __: shown.append(done), clock=timed.clock)
    assert len(timed.tried) == seconds
    assert shown == sorted(shown)
    assert shown[-1] == seconds
    assert {(kind, tokens) for kind, tokens, _ in timed.tried} == set(found)


def test_steps_of_one_sequence_of_all_slots_and_of_prompts_come_first(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(monkeypatch, one_fast)
    KernelTuner(*loaded, LIMITS).search(1e6, silent, clock=timed.clock)
    counts = [tokens for _, tokens, _ in timed.tried]
    assert {1, 2, 64} == set(counts[: counts.index(4)])
    assert set(counts) == {count for count in TOKEN_COUNTS if count <= 64}


def test_a_search_that_is_interrupted_keeps_the_best_until_then(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def press_ctrl_c(variant: MatMulVariant) -> float:
        if next(calls) == 300:
            raise KeyboardInterrupt
        return one_fast(variant)

    timed = Timed(monkeypatch, press_ctrl_c)
    found = KernelTuner(*loaded, LIMITS, counts=(1,)).search(1e6, silent, clock=timed.clock)
    assert len(timed.tried) == 301
    assert FAST in {choice.variant for choice in found.values()}


def test_a_kernel_that_the_device_refuses_is_left_out(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(variant: MatMulVariant) -> float:
        if variant == FAST:
            raise DeviceError("no")
        return 1e-3

    timed = Timed(monkeypatch, refuse)
    found = KernelTuner(*loaded, LIMITS, counts=(1,)).search(1e6, silent, clock=timed.clock)
    assert found
    assert FAST not in {choice.variant for choice in found.values()}


def test_a_fixed_choice_that_the_device_refuses_gives_way_to_the_fastest_that_works(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = loaded[1].tuning.matmul(1)

    def refuse(variant: MatMulVariant) -> float:
        if variant == fixed:
            raise DeviceError("no")
        return one_fast(variant)

    timed = Timed(monkeypatch, refuse)
    tuner = KernelTuner(*loaded, LIMITS, counts=(1,))
    found = tuner.search(1e6, silent, clock=timed.clock)
    assert found
    for choice in found.values():
        assert (choice.variant, choice.default, choice.measured) == (FAST, fixed, 1e-3)
        assert choice.default_measured == choice.gain == math.inf
    tries = [variant for _, _, variant in timed.tried]
    assert tries.count(fixed) == len(found)  # it is not tried again
    with pytest.raises(DeviceError, match="no"):
        tuner.times(next(iter(found))[0], 1, (FAST, fixed), rounds=1)


def test_a_device_that_refuses_all_kernels_leaves_the_fixed_choice(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: MatMulVariant) -> float:
        raise DeviceError("no")

    timed = Timed(monkeypatch, refuse)
    assert KernelTuner(*loaded, LIMITS, counts=(1,)).search(1e6, silent, clock=timed.clock) == {}
    assert len(timed.tried) == len(set(timed.tried)) > 0


def test_what_is_known_is_not_searched_for(
    loaded: tuple[GpuRunner, MatMulKernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(monkeypatch, one_fast)
    tuner = KernelTuner(*loaded, LIMITS, counts=(1,))
    found = tuner.search(1e6, silent, clock=timed.clock)
    first, *others = {kind for kind, _ in found}
    timed.tried.clear()
    again = tuner.search(1e6, silent, known={first}, clock=timed.clock)
    assert {kind for kind, _ in again} == {kind for kind, _, _ in timed.tried} == set(others)
    assert tuner.search(1e6, silent, known={first, *others}, clock=timed.clock) == {}


def test_the_kernels_that_were_found_compute_the_same() -> None:
    """Compare the fixed choice with a measured one, with real kernels and the real clock."""
    fixed = StreamVariant(tokens=1, groups=2, panels=4, inputs="broadcast")
    rows = []
    for variant in (fixed, FAST):
        runner, matmuls = load_with_matmuls(random_model(tiny_shape(), seed=3))
        with closing(runner):
            tuner = KernelTuner(runner, matmuls, LIMITS, counts=(1,))
            kinds = [part.kind for matmul in matmuls.bound for part, _ in matmul.parts]
            times = tuner.times(kinds[0], 1, (fixed, FAST), rounds=1)
            assert all(seconds > 0 for seconds in times.values())
            matmuls.tuning = replace(matmuls.tuning, found={(kind, 1): variant for kind in kinds})
            rows.append(run_step(runner, [TokenRun(0, [5], rows=1)]).full_row(0))
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5, atol=1e-5)


def test_matmuls_of_bytes_are_searched_among_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, matmuls = load_with_matmuls(random_model(tiny_shape(), seed=3), weights="int8,activations=int8")
    with closing(runner):
        timed = Timed(monkeypatch, one_fast)
        found = KernelTuner(runner, matmuls, LIMITS, counts=(1, 8)).search(1e6, silent, clock=timed.clock)
    numbers = {kind.number for kind, _ in found}
    assert numbers == {"f32", "int8"}
    assert all(variant.number == kind.number for kind, _, variant in timed.tried)


@pytest.mark.parametrize("tokens", [17, 64, 65, 200, 256])
def test_on_hardware_weights_are_read_once_for_64_tokens(tokens: int) -> None:
    work = MatMulWork(1024, 1024, 1 << 21, tokens)
    allowed = list(variants(LIMITS, work, software=False))
    assert allowed
    assert all(-(-tokens // variant.tokens) <= -(-tokens // 64) for variant in allowed)


@pytest.mark.parametrize("kind", ["software", "discrete", "integrated", "other"])
@pytest.mark.parametrize("tokens", [1, 8, 64])
@pytest.mark.parametrize("number", ["f32", "int8"])
def test_every_variant_has_a_cost_and_more_work_costs_more(kind: str, tokens: int, number: str) -> None:
    work = MatMulWork(1024, 1024, 1 << 21, tokens, number=number)
    cost = cost_on(DeviceInfo(0, "any", kind, "any", "any"))
    allowed = list(variants(LIMITS, work, software=kind == "software"))
    assert len(set(allowed)) == len(allowed) > 10
    assert {variant.number for variant in allowed} == {number}
    larger = replace(work, columns=64 * work.columns, weight_bytes=64 * work.weight_bytes)
    for variant in allowed:
        assert 0 < cost.predict(work, variant) < cost.predict(larger, variant)
