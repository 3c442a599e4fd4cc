"""Plans are submitted in parts that no device should need long for, by what was measured."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wgpu import GPUCommandBuffer, GPUDevice

from rnn_engine.gpu import Dispatch, Plan, native
from rnn_engine.gpu.recorder import Pace
from rnn_engine.types import TokenRun, run_step
from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape


def plan_of(works: list[int]) -> Plan:
    """Return a plan of dispatches with this work, each of which is recorded as its place."""
    plan = Plan(tuple(Dispatch(str(work), None, None, 1, operations=work) for work in works))  # type: ignore[arg-type]
    plan.__dict__["raw"] = tuple(range(len(works)))
    return plan


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 30))
def test_parts_are_in_order_and_within_the_bound(works: list[int], most: int) -> None:
    parts = cast(list[tuple[int, ...]], list(plan_of(works).parts(most)))  # see `plan_of`
    assert [place for part in parts for place in part] == list(range(len(works)))
    for part in parts:
        assert len(part) <= 1 or sum(works[place] for place in part) <= most
    for part, following in pairwise(parts):
        assert sum(works[place] for place in (*part, following[0])) > most


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_work_of_a_submission_follows_what_was_measured() -> None:
    clock = Clock()
    pace = Pace("integrated", clock)
    assert pace.most_work == pytest.approx(0.2 * 3e11)
    pace.begin(1, 10**9)
    pace.begin(2, 10**9)  # while the first runs
    clock.now += 1.0
    pace.end(1)
    assert pace.most_work == pytest.approx(0.2 * 1e9)
    clock.now += 2.0
    pace.end(2)
    assert pace.most_work == pytest.approx(0.2 * 0.5e9)
    pace.end(2)
    pace.begin(3, 10**12)
    clock.now += 1.0
    pace.end(3)
    assert pace.most_work == pytest.approx(0.2 * 1.25 * 0.5e9)  # one measurement alone may be wrong
    assert Pace("software", clock).most_work == float("inf")


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the indices of submissions."""
    indices: list[int] = []
    submit = native.submit

    def noted(device: GPUDevice, *commands: GPUCommandBuffer) -> int:
        indices.append(submit(device, *commands))
        return indices[-1]

    monkeypatch.setattr(native, "submit", noted)
    return indices


def test_a_step_in_parts_gives_the_same_logits(submitted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(tiny_shape(), seed=3)
    rows, counts = [], []
    for most in (float("inf"), 1e5, 1.0):
        monkeypatch.setattr(Pace, "most_work", most)
        runner = make_gpu_runner(model, num_slots=1, max_tokens=8, max_rows=1, num_candidates=8)
        with closing(runner):
            before = len(submitted)
            rows.append(run_step(runner, [TokenRun(0, [1, 2, 3, 4, 5], rows=1)]).full_row(0).copy())
            counts.append(len(submitted) - before)
            num_dispatches = len(runner.plan(5, 1, 1).dispatches)
    np.testing.assert_array_equal(rows[1], rows[0])
    np.testing.assert_array_equal(rows[2], rows[0])
    assert counts[0] < counts[1] < counts[2] <= num_dispatches + counts[0]
