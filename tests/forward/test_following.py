"""Runs that go on from a drawn token, in steps that are submitted before the host knows the token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward import GpuRunner
from rnn_engine.types import Drawn, Readout, TokenDraw, TokenRun, run_step
from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape

NUM_SLOTS = 4
SHAPE = tiny_shape()
NOT_KNOWN = (0,)  # the placeholder token of a run that follows


def make_runner() -> GpuRunner:
    model = random_model(SHAPE, seed=40)
    return make_gpu_runner(model, num_slots=2 * NUM_SLOTS, max_tokens=32, max_rows=16, num_candidates=8)


@pytest.fixture(scope="module")
def runner() -> Iterator[GpuRunner]:
    runner = make_runner()
    yield runner
    runner.close()


def greedy(count: int, stop: int | None = None) -> TokenDraw:
    return TokenDraw(0, 0, 1, 1.0, 1.0, count, None if stop is None else halts(stop))


def undecided() -> TokenDraw:
    return TokenDraw(0, 0, 0, 1.0, 100.0)  # the row is so flat that the candidates decide nothing


def halts(*tokens: int) -> NDArray[np.uint32]:
    mask = np.zeros(-(-SHAPE.vocab_size // 32), np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << (token % 32))
    return mask


def follow_plainly(runner: GpuRunner, slot: int, token: int, count: int) -> list[int]:
    """Return `token` and the `count` greedy tokens after it, one step each."""
    runner.write_state(slot, None)
    tokens = [token]
    while len(tokens) <= count:
        tokens.append(int(run_step(runner, [TokenRun(slot, tokens[-1:], rows=1)]).ids[0, 0]))
    return tokens


def submit_all(runner: GpuRunner, steps: Sequence[Sequence[TokenRun]]) -> list[Readout]:
    """Run steps with two always in flight; return their read-outs."""
    tickets, readouts = [], []
    for step in steps:
        tickets.append(runner.submit(step))
        if len(tickets) == 2:
            readouts.append(runner.collect(tickets.pop(0)))
    return [*readouts, *(runner.collect(ticket) for ticket in tickets)]


def expect_state(runner: GpuRunner, slot: int, tokens: Sequence[int]) -> None:
    """Assert that the state of `slot` is the one after `tokens`."""
    other = 2 * NUM_SLOTS - 1
    runner.write_state(other, None)
    run_step(runner, [TokenRun(other, tokens)])
    found = runner.read_state(slot)
    for name, values in runner.read_state(other).items():
        np.testing.assert_allclose(found[name], values, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    stops=st.lists(st.none() | st.integers(1, 20), min_size=3, max_size=3),
    order=st.permutations(range(3)),
)
def test_runs_that_follow_leave_what_single_steps_leave(
    runner: GpuRunner, counts: list[int], stops: list[int | None], order: list[int]
) -> None:
    """A sequence that halts at its `stop`-th token does nothing after that, whichever step the token is in."""
    starts = [3, 1, 2]
    followed = [follow_plainly(runner, slot, starts[slot], sum(counts)) for slot in range(3)]
    ends = [
        sum(counts) if stop is None else tokens.index(tokens[min(stop, sum(counts))], 1)
        for tokens, stop in zip(followed, stops, strict=True)
    ]
    for slot in range(3):
        runner.write_state(slot, None)
    steps: list[list[TokenRun]] = []
    for number, count in enumerate(counts):
        draws = {slot: greedy(count, None if stops[slot] is None else followed[slot][ends[slot]]) for slot in range(3)}
        slots = order if number % 2 else range(3)
        steps.append([TokenRun(slot, (starts[slot],), 1, draw=draws[slot], follows=number > 0) for slot in slots])
    readouts = submit_all(runner, steps)
    for slot in range(3):
        drawn = [
            readout.drawn[next(place for place, run in enumerate(step) if run.slot == slot)]
            for step, readout in zip(steps, readouts, strict=True)
        ]
        assert [token for one in drawn for token in one.tokens] == followed[slot][1 : ends[slot] + 1]
        assert all(one.is_settled for one in drawn)
        assert sum(one.num_run for one in drawn) == ends[slot]
        expect_state(runner, slot, followed[slot][: ends[slot]])


def test_a_row_that_is_left_to_the_host_stays_until_the_step_after_next(runner: GpuRunner) -> None:
    for slot in range(2):
        runner.write_state(slot, None)
    first = runner.submit([TokenRun(0, (1,), 1, draw=greedy(3)), TokenRun(1, (2,), 1, draw=undecided())])
    # the other way round, so that each row is another run's
    second = [TokenRun(1, NOT_KNOWN, 1, draw=greedy(4), follows=True)]
    second.append(TokenRun(0, NOT_KNOWN, 1, draw=greedy(4), follows=True))
    ticket = runner.submit(second)
    readout = runner.collect(first)
    assert readout.drawn[1] == Drawn([], is_settled=False)
    expected = run_step(make := make_runner(), [TokenRun(1, (2,), rows=1)])
    np.testing.assert_allclose(readout.full_row(1), expected.full_row(0), atol=1e-5)
    np.testing.assert_array_equal(readout.ids[1], expected.ids[0])
    make.close()
    third = runner.submit(
        [TokenRun(1, (5,), 1, draw=greedy(2)), TokenRun(0, NOT_KNOWN, 1, draw=greedy(2), follows=True)]
    )
    assert runner.collect(ticket).drawn[0] == Drawn([], is_settled=True)
    ended = runner.collect(third).drawn
    assert len(ended[1].tokens) == 2
    expect_state(runner, 1, [2, 5, ended[0].tokens[0]])


def test_runs_follow_beside_a_prompt(runner: GpuRunner) -> None:
    tokens = follow_plainly(runner, 0, 3, 6)
    prompt = follow_plainly(runner, 1, 5, 9)
    for slot in range(2):
        runner.write_state(slot, None)
    steps = [
        [TokenRun(0, (3,), 1, draw=greedy(3))],
        [TokenRun(1, prompt[:6], 1, draw=greedy(1)), TokenRun(0, NOT_KNOWN, 1, draw=greedy(1), follows=True)],
        [TokenRun(slot, NOT_KNOWN, 1, draw=greedy(2), follows=True) for slot in (0, 1)],
    ]
    drawn = [readout.drawn for readout in submit_all(runner, steps)]
    assert [*drawn[0][0].tokens, *drawn[1][1].tokens, *drawn[2][0].tokens] == tokens[1:]
    assert [*drawn[1][0].tokens, *drawn[2][1].tokens] == prompt[6:9]
    expect_state(runner, 1, prompt[:8])


def test_a_slot_may_get_another_state_while_its_runs_are_in_flight(runner: GpuRunner) -> None:
    tokens = follow_plainly(runner, 0, 3, 6)
    other = follow_plainly(runner, 1, 5, 3)
    for slot in range(2):
        runner.write_state(slot, None)
    steps = [[TokenRun(slot, (1,), 1, draw=greedy(3), follows=follows) for slot in (0, 1)] for follows in (False, True)]
    tickets = [runner.submit(step) for step in steps]
    runner.write_state(0, None)
    runner.copy_state(0, 1)
    tickets.append(runner.submit([TokenRun(0, (3,), 1, draw=greedy(5)), TokenRun(1, (5,), 1, draw=greedy(3))]))
    *_, readout = [runner.collect(ticket) for ticket in tickets]
    assert [list(one.tokens) for one in readout.drawn] == [tokens[1:6], other[1:]]
    expect_state(runner, 0, tokens[:5])
    expect_state(runner, 1, other[:3])


def test_a_state_is_read_and_copied_after_all_that_was_run(runner: GpuRunner) -> None:
    tokens = follow_plainly(runner, 0, 3, 7)
    runner.write_state(0, None)
    tickets = [runner.submit([TokenRun(0, (3,), 1, draw=greedy(3), follows=follows)]) for follows in (False, True)]
    runner.copy_state(0, 2)
    pending = runner.start_read(0)
    for ticket in tickets:
        runner.collect(ticket)
    expect_state(runner, 2, tokens[:6])
    for name, values in pending.result().items():
        np.testing.assert_array_equal(values, runner.read_state(2)[name])


def test_a_run_that_follows_nothing_is_refused(runner: GpuRunner) -> None:
    def refused(run: TokenRun) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            runner.submit([run])
        return str(caught.value)

    following = TokenRun(0, NOT_KNOWN, 1, draw=greedy(1), follows=True)
    runner.write_state(0, None)
    assert "run 0: follows" in refused(following)
    run_step(runner, [TokenRun(0, (1,), 1, draw=greedy(1))])
    run_step(runner, [following])
    assert "run 0: follows" in refused(TokenRun(0, NOT_KNOWN, 1, follows=True))
    assert "run 0: follows" in refused(TokenRun(0, (1, 2), 1, draw=greedy(1), follows=True))
    run_step(runner, [TokenRun(0, (1,), 1)])
    assert "run 0: follows" in refused(following)
