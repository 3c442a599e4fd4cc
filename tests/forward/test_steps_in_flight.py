"""Steps in flight on a GPU: their number, how long their rows stay valid, and the effects of a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from rnn_engine.errors import StepError
from rnn_engine.forward import GpuRunner
from rnn_engine.gpu import BufferCopy, Plan, ReadBack, Recorder, native
from rnn_engine.types import TokenRun, run_step
from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape

MODEL = random_model(tiny_shape(layers=1), seed=3)


@pytest.fixture
def runner() -> Iterator[GpuRunner]:
    runner = make_gpu_runner(MODEL, num_slots=3, max_tokens=8, max_rows=4, num_candidates=8)
    yield runner
    runner.close()


class Submissions:
    """A count of the submissions that a runner has not waited for, as if the device did no work by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unfinished: set[int] = set()
        self.most = self.count = 0
        submit, wait, take = Recorder.submit, Recorder.wait, ReadBack.take

        def counted_submit(recorder: Recorder, plan: Plan | None = None, copies: Sequence[BufferCopy] = ()) -> int:
            submission = submit(recorder, plan, copies)
            self.unfinished.add(submission)
            self.count += 1
            self.most = max(self.most, len(self.unfinished))
            return submission

        def counted_wait(recorder: Recorder, submission: int) -> None:
            wait(recorder, submission)
            self._finish(submission)

        def counted_take(download: ReadBack) -> bytes:
            self._finish(download.submission)
            return take(download)

        monkeypatch.setattr(Recorder, "submit", counted_submit)
        monkeypatch.setattr(Recorder, "wait", counted_wait)
        monkeypatch.setattr(ReadBack, "take", counted_take)

    def _finish(self, submission: int) -> None:
        self.unfinished = {other for other in self.unfinished if other > submission}


@pytest.mark.parametrize("rows", [0, 1])
def test_a_long_prompt_has_at_most_two_chunks_on_the_device(
    runner: GpuRunner, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    submissions = Submissions(monkeypatch)
    for _ in range(20):
        run_step(runner, [TokenRun(0, [1] * 8, rows)])
    tickets = [runner.submit([TokenRun(0, [1] * 8, rows)]) for _ in range(20)]
    for ticket in tickets:
        runner.collect(ticket)
    assert submissions.count == 40
    assert submissions.most == 2


def test_a_step_is_waited_for_alone(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    submissions = Submissions(monkeypatch)
    first, second = (runner.submit([TokenRun(0, [1], rows=1)]) for _ in range(2))
    runner.collect(first)
    assert len(submissions.unfinished) == 1
    runner.collect(second)
    assert not submissions.unfinished


def test_a_row_is_refused_once_a_later_step_has_overwritten_it(runner: GpuRunner) -> None:
    first, second, _ = [run_step(runner, [TokenRun(0, [token], rows=1)]) for token in (1, 2, 3)]
    with pytest.raises(StepError, match="row 0 of step 0 is overwritten; 3 were submitted"):
        first.full_row(0)
    assert second.full_row(0).max() == second.logits[0, 0]


def fail(*_: object) -> int:
    raise RuntimeError("told to fail")


def test_a_step_that_can_not_be_submitted_changes_nothing(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = [TokenRun(0, [1, 2], rows=1)]
    expected = [run_step(runner, batch).logits for _ in range(3)]
    runner.write_state(0, None)
    found = [run_step(runner, batch).logits]
    earlier = runner.submit(batch)
    with monkeypatch.context() as patch:
        patch.setattr(native, "submit", fail)
        with pytest.raises(StepError, match="told to fail"):
            runner.submit(batch)
    found += [runner.collect(earlier).logits, run_step(runner, batch).logits]
    assert np.array_equal(found, expected)


def test_a_step_that_can_not_be_collected_hurts_no_other(runner: GpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, other = [TokenRun(0, [1, 2], rows=1)], [TokenRun(1, [3], rows=1)]
    expected = [run_step(runner, other).logits for _ in range(2)]
    runner.write_state(1, None)
    failing = runner.submit(batch)
    with monkeypatch.context() as patch:
        patch.setattr(native, "copy_mapped", fail)
        with pytest.raises(StepError, match="told to fail"):
            runner.collect(failing)
    assert np.array_equal([run_step(runner, other).logits for _ in range(2)], expected)
