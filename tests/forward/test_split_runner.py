"""A model whose layers lie on several devices gives, to the last bit, what it gives on one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import Unpack

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward import SplitRunner
from rnn_engine.forward.split_runner import PartRunner
from rnn_engine.loading.placement import cut, split_device
from rnn_engine.loading.runner import load_runner
from rnn_engine.model import ModelPart
from rnn_engine.types import F32, Model, Runner, TokenDraw, TokenRun, TracingRunner, run_step
from tests.support.cpu import make_cpu_runner
from tests.support.gpu import make_gpu_runner
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.results_contract import (
    MAX_ROWS,
    MAX_TOKENS,
    MODEL,
    NUM_CANDIDATES,
    NUM_SLOTS,
    OTHER_MODELS,
    TOKENS,
    Limits,
    MakeRunner,
    ResultsContract,
    Timetable,
    timetables,
)
from tests.support.runner_contract import RunnerContract

MODELS = {"v7": MODEL, **OTHER_MODELS}


LIMITS: Limits = {
    "num_slots": NUM_SLOTS,
    "max_tokens": MAX_TOKENS,
    "max_rows": MAX_ROWS,
    "num_candidates": NUM_CANDIDATES,
}


def load(model: Model, device: str, **limits: Unpack[Limits]) -> PartRunner:
    """Load a model, or a part of one, onto the GPU, which is called 0 here, or the processor."""
    return make_cpu_runner(model, **limits) if device == "cpu" else make_gpu_runner(model, **limits)


def split(model: Model, placement: str, **limits: Unpack[Limits]) -> TracingRunner:
    """Load the parts of a model. A model of too few layers is not cut."""
    if placement.count(",") >= model.shape.num_layers or "," not in placement:
        return load(model, placement.partition(",")[0], **limits)
    return SplitRunner(model.shape, [load(part, device, **limits) for part, device in cut(model, placement)])


class TestOnTwoDevices(RunnerContract):
    tolerance = 2e-5

    @pytest.fixture(scope="class", params=["0,0", "0,cpu"])
    @classmethod
    def make_runner(cls, request: pytest.FixtureRequest) -> MakeRunner:
        return lambda model, **limits: split(model, request.param, **limits)


class TestOtherVersions(ResultsContract):
    @pytest.fixture(scope="class", params=list(OTHER_MODELS))
    @classmethod
    def model(cls, request: pytest.FixtureRequest) -> TensorModel:
        return OTHER_MODELS[request.param]

    @pytest.fixture(scope="class")
    @classmethod
    def make_runner(cls) -> MakeRunner:
        return lambda model, **limits: split(model, "cpu,0" if model.shape.num_layers < 3 else "cpu,0,cpu", **limits)

    @settings(max_examples=3, suppress_health_check=[HealthCheck.differing_executors])
    @given(timetable=timetables(), slots=st.permutations(range(NUM_SLOTS)))
    def test_results_depend_on_nothing_but_the_sequence(
        self, runner: Runner, model: TensorModel, timetable: Timetable, slots: list[int]
    ) -> None:
        self.check_results(runner, model, timetable, slots)


@pytest.fixture(params=list(MODELS))
def both(request: pytest.FixtureRequest) -> Iterator[tuple[TracingRunner, TracingRunner]]:
    """Return a runner on one device, and one whose parts are on it."""
    model = MODELS[request.param]
    with ExitStack() as closed:
        whole = make_gpu_runner(model, **LIMITS)
        closed.callback(whole.close)
        parts = split(model, "0,0", **LIMITS)
        closed.callback(parts.close)
        yield whole, parts


def run(runner: Runner) -> list[F32]:
    """Run sequences in turns, with their states moved about, and return all rows and states."""
    found = []
    for slot in range(NUM_SLOTS):
        runner.write_state(slot, None)
    for start, end, rows in ((0, 9, 3), (9, 10, 1), (10, 30, 2)):
        readout = run_step(runner, [TokenRun(slot, TOKENS[slot][start:end], rows) for slot in range(3)])
        found += [readout.full_row(row) for row in range(3 * rows)]
    runner.copy_state(1, 4)
    runner.write_state(0, runner.read_state(2))
    tickets = [runner.submit([TokenRun(slot, [5, 7], 1)]) for slot in (4, 0)]  # two steps in flight
    found += [runner.collect(ticket).full_row(0) for ticket in tickets]
    return [*found, *(values for slot in range(NUM_SLOTS) for values in runner.read_state(slot).values())]


def test_parts_give_the_same_bits_as_the_whole(both: tuple[TracingRunner, TracingRunner]) -> None:
    for expected, found in zip(*map(run, both), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=12)
@given(version=st.sampled_from(list(MODELS)), cuts=st.sets(st.integers(1, 4), min_size=1, max_size=3))
def test_any_cuts_give_the_same_bits(version: str, cuts: set[int]) -> None:
    model = random_model(replace(MODELS[version].shape, num_layers=5), seed=6)
    placement = ",".join(f"0:{end - start}" for start, end in pairwise([0, *sorted(cuts), 5]))
    with closing(split(model, "0", **LIMITS)) as whole, closing(split(model, placement, **LIMITS)) as parts:
        for expected, found in zip(run(whole), run(parts), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_parts_can_be_traced(both: tuple[TracingRunner, TracingRunner]) -> None:
    batch = [TokenRun(1, TOKENS[0][:7], 2), TokenRun(0, TOKENS[1][:3])]
    layers = range(both[0].shape.num_layers)
    expected, found = (runner.trace(batch, layers) for runner in both)
    np.testing.assert_array_equal(found.logits, expected.logits)
    assert found.hidden.keys() == set(layers)
    for layer in layers:
        np.testing.assert_array_equal(found.hidden[layer], expected.hidden[layer])


def test_a_run_can_not_follow_a_draw_on_another_device() -> None:
    draw = TokenDraw(0, 0, 1, 1.0, 1.0)
    with closing(split(MODEL, "0,0", **LIMITS)) as runner:
        assert run_step(runner, [TokenRun(0, [1], 1, draw=draw)]).drawn[0].tokens
        with pytest.raises(InvalidRequestError, match="run 0: follows: True is not allowed; expected False, since"):
            runner.submit([TokenRun(0, [0], 1, draw=draw, follows=True)])


@pytest.mark.parametrize(
    ("device", "layers", "placed"),
    [("0,1", 5, [(0, 2), (2, 5)]), ("0:4,cpu:1", 5, [(0, 4), (4, 5)]), ("0,0,cpu", 3, [(0, 1), (1, 2), (2, 3)])],
)
def test_layers_are_divided(device: str, layers: int, placed: Sequence[tuple[int, int]]) -> None:
    parts = [part for part, _ in cut(random_model(tiny_shape(layers=layers), seed=1), device)]
    assert [(part.layers.start, part.layers.stop) for part in parts] == placed
    assert [part.has("emb.weight") for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [part.has("head.weight") for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("device", ["0:3,cpu:1", "0,0,0,0,0,0", "0:0,cpu:5", "0:5,1"])
def test_numbers_that_do_not_fit_are_refused(device: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"device: .* is not allowed; expected .*5"):
        load_runner(random_model(tiny_shape(layers=5), seed=1), device)


@pytest.mark.parametrize(("device", "numbers"), [("0,1", (3, 3)), ("0", (5,)), ("0,1", (5,)), ("auto", (2, 3))])
def test_a_split_that_does_not_fit_is_refused(device: str, numbers: Sequence[int]) -> None:
    with pytest.raises(InvalidRequestError, match=r"split: .* add up to 5, such as 3,2 with --device 0,1"):
        split_device(device, numbers, 5)


def test_a_part_is_a_model_of_its_tensors() -> None:
    model = random_model(tiny_shape(layers=4), seed=2)
    parts = [ModelPart(model, range(2), has_head=False), ModelPart(model, range(2, 4), has_embedding=False)]
    assert sorted(part.name_in_model(name) for part in parts for name in part.names) == sorted(model.names)
    np.testing.assert_array_equal(parts[1].tensor("blocks.1.ffn.key.weight"), model.tensor("blocks.3.ffn.key.weight"))
    assert not parts[1].has("blocks.2.ffn.key.weight")
    assert not parts[1].has("blocks.0.ln0.weight")
