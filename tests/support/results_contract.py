"""The results of every runner, as tests to inherit; see `runner_contract`. The oracle is the numpy reference in f64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Protocol, TypedDict

import numpy as np
import pytest
from hypothesis import strategies as st

from rnn_engine.reference import Array
from rnn_engine.types import F32, Model, ModelShape, Runner, TokenRun, run_step
from tests.support.models import TensorModel, deep_embedded, random_model, tiny_shape
from tests.support.older_models import OLDER_SHAPES, QWEN2_SHAPES
from tests.support.reference import forward

NUM_SLOTS, MAX_TOKENS, MAX_ROWS, NUM_CANDIDATES = 5, 128, 16, 8
LIMITS = {"num_slots": NUM_SLOTS, "max_tokens": MAX_TOKENS, "max_rows": MAX_ROWS, "num_candidates": NUM_CANDIDATES}
"""The limits of nearly all runners of the contract, since kernels are compiled anew for others."""
NUM_SEQUENCES, LENGTH = 4, 30
SHAPE = tiny_shape()
MODEL = random_model(SHAPE, seed=20)
OTHER_MODELS = {
    shape.version: random_model(shape, seed=20) for shape in (*OLDER_SHAPES, *QWEN2_SHAPES, deep_embedded(SHAPE))
}
TOKENS: list[list[int]] = np.random.default_rng(21).integers(SHAPE.vocab_size, size=(NUM_SEQUENCES, LENGTH)).tolist()


class Limits(TypedDict):
    """The capacities of a runner."""

    num_slots: int
    max_tokens: int
    max_rows: int
    num_candidates: int


class MakeRunner(Protocol):
    """A function that makes the runner under test with given limits."""

    def __call__(
        self, model: Model, *, num_slots: int, max_tokens: int, max_rows: int, num_candidates: int
    ) -> Runner: ...


Timetable = list[list[tuple[int, int, int, int]]]
"""For each step its runs: sequence, first token, the one after the last, rows."""


@st.composite
def timetables(draw: st.DrawFn) -> Timetable:
    """Draw a timetable: every sequence is cut at random places, and its parts go into random steps in order."""
    steps: dict[int, list[tuple[int, int, int, int]]] = {}
    for sequence in range(NUM_SEQUENCES):
        cuts = [0, *sorted(draw(st.sets(st.integers(1, LENGTH - 1), max_size=6))), LENGTH]
        step = 0
        for start, end in pairwise(cuts):
            step += draw(st.integers(1, 3))
            rows = draw(st.integers(0, min(end - start, MAX_ROWS // NUM_SEQUENCES)))
            steps.setdefault(step, []).append((sequence, start, end, rows))
    return [steps[step] for step in sorted(steps)]


class ResultsContract:
    """Tests of a runner's results with a model of any version. They share the runner; each first writes its states."""

    tolerance = 1e-5
    """The greatest error of a logit or a state's number, in parts of the greatest in its array."""

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> TensorModel:
        return MODEL

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls, make_runner: MakeRunner, model: TensorModel) -> Iterator[Runner]:
        runner = make_runner(model, **LIMITS)
        yield runner
        runner.close()

    def assert_close(self, found: Array, expected: Array) -> None:
        assert found.shape == expected.shape
        assert found.dtype == np.float32
        assert np.abs(found - expected).max() <= self.tolerance * np.abs(expected).max()

    def check_results(self, runner: Runner, model: TensorModel, timetable: Timetable, slots: list[int]) -> None:
        """Run all sequences as the timetable says, each in its slot, and compare them with the reference."""
        expected = expected_results(model.shape.version)
        for slot in range(NUM_SLOTS):
            runner.write_state(slot, None)
        for runs in timetable:
            readout = run_step(
                runner, [TokenRun(slots[seq], TOKENS[seq][start:end], rows) for seq, start, end, rows in runs]
            )
            positions = [(seq, position) for seq, _, end, rows in runs for position in range(end - rows, end)]
            assert len(readout.ids) == len(positions)
            for row, (seq, position) in enumerate(positions):
                self.assert_close(readout.full_row(row), expected[seq][0][position])
        for seq, (_, state) in enumerate(expected):
            for name, values in runner.read_state(slots[seq]).items():
                self.assert_close(values, state[name])

    def test_no_state_is_the_initial_one(self, runner: Runner, model: TensorModel) -> None:
        run_step(runner, [TokenRun(2, [1])])
        runner.write_state(2, None)
        assert_equal_states(runner.read_state(2), model.shape.initial_state())

    def test_a_state_is_read_as_it_was_written_and_run_from(self, runner: Runner, model: TensorModel) -> None:
        state = random_state(model.shape)
        logits, after = forward(model, [3, 1, 2], state, np.float64)
        runner.write_state(3, state)
        assert_equal_states(runner.read_state(3), state)
        readout = run_step(runner, [TokenRun(3, [3, 1, 2], rows=3)])
        self.assert_close(np.stack([readout.full_row(row) for row in range(3)]), logits)
        for name, values in runner.read_state(3).items():
            self.assert_close(values, after[name])

    def test_a_fork_is_equal_and_goes_its_own_way(self, runner: Runner, model: TensorModel) -> None:
        runner.write_state(1, random_state(model.shape))
        runner.copy_state(1, 4)
        runner.copy_state(1, 1)
        assert_equal_states(runner.read_state(4), random_state(model.shape))
        run_step(runner, [TokenRun(4, [9])])
        assert_equal_states(runner.read_state(1), random_state(model.shape))
        for name, values in runner.read_state(4).items():
            assert not np.array_equal(values, random_state(model.shape)[name]), name


@cache
def expected_results(version: str) -> list[tuple[Array, dict[str, Array]]]:
    """Return for each sequence the logits [LENGTH, V] and the last state of the version's model, in f64."""
    model = MODEL if version == SHAPE.version else OTHER_MODELS[version]
    return [forward(model, tokens, dtype=np.float64) for tokens in TOKENS]


def random_state(shape: ModelShape = SHAPE) -> dict[str, F32]:
    """Return a state without zeros, the same at every call."""
    generator = np.random.default_rng(23)
    return {
        name: generator.uniform(0.1, 1.0, values.shape).astype(np.float32)
        for name, values in shape.initial_state().items()
    }


def assert_equal_states(found: dict[str, F32], expected: dict[str, F32]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], values), name
