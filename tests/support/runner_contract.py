"""The contract of every `Runner` on any device, as tests to inherit.

A subclass is named Test.... Its module has a fixture `make_runner`, of class scope or wider, that returns a
`MakeRunner`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rnn_engine.errors import InvalidRequestError, StateError
from rnn_engine.reference import Array
from rnn_engine.types import F32, PendingState, Readout, Runner, TokenRun, run_step
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.results_contract import (
    LIMITS,
    MAX_ROWS,
    MAX_TOKENS,
    MODEL,
    NUM_CANDIDATES,
    NUM_SLOTS,
    SHAPE,
    TOKENS,
    MakeRunner,
    ResultsContract,
    Timetable,
    assert_equal_states,
    random_state,
    timetables,
)
from tests.support.token_masks import pack_masks

_CHANGES = st.tuples(
    st.sampled_from(["write", "reset", "copy", "copy", "read", "read", "run"]),
    st.integers(0, NUM_SLOTS - 1),
    st.integers(0, NUM_SLOTS - 1),
)


class RunnerContract(ResultsContract):
    """All tests of the contract, with a model of one version."""

    # Results

    @settings(max_examples=20, suppress_health_check=[HealthCheck.differing_executors])
    @given(timetable=timetables(), slots=st.permutations(range(NUM_SLOTS)))
    def test_results_depend_on_nothing_but_the_sequence(
        self, runner: Runner, model: TensorModel, timetable: Timetable, slots: list[int]
    ) -> None:
        self.check_results(runner, model, timetable, slots)

    def test_a_readout_without_rows_is_empty(self, runner: Runner) -> None:
        readout = run_step(runner, [TokenRun(0, TOKENS[0]), TokenRun(3, TOKENS[1])])
        assert readout.ids.shape == readout.logits.shape == (0, NUM_CANDIDATES)
        assert readout.logsumexp.shape == readout.target_logits.shape == (0,)

    def test_candidates_are_the_greatest_of_the_row(self, runner: Runner) -> None:
        readout = run_step(runner, [TokenRun(0, TOKENS[0], rows=9), TokenRun(1, TOKENS[1]), TokenRun(2, [3], rows=1)])
        assert readout.ids.shape == (10, NUM_CANDIDATES)
        assert readout.ids.dtype == np.int32
        for row in range(10):
            full = readout.full_row(row)
            ids = np.argsort(-full, kind="stable")[:NUM_CANDIDATES]
            assert readout.ids[row].tolist() == ids.tolist()
            assert readout.logits[row].tolist() == full[ids].tolist()

    def test_equal_logits_come_by_ascending_id(self, make_runner: MakeRunner) -> None:
        head = np.zeros_like(MODEL.tensor("head.weight"))
        head[[11, 50, 70]] = MODEL.tensor("head.weight")[[11, 50, 70]]
        model = TensorModel(SHAPE, {**MODEL.tensors, "head.weight": head})
        runner = make_runner(model, **LIMITS)
        readout = run_step(runner, [TokenRun(0, TOKENS[0][:8], rows=8)])
        for row in range(8):
            full = readout.full_row(row)
            assert np.count_nonzero(full) == 3
            assert readout.ids[row].tolist() == np.argsort(-full, kind="stable")[:NUM_CANDIDATES].tolist()
        runner.close()

    def test_a_small_vocabulary_has_fewer_candidates(self, make_runner: MakeRunner) -> None:
        model = random_model(tiny_shape(vocab=5), seed=22)
        runner = make_runner(model, **LIMITS)
        readout = run_step(runner, [TokenRun(0, [4, 0], rows=2)])
        assert readout.logits.shape == (2, 5)
        assert sorted(readout.ids[1].tolist()) == [0, 1, 2, 3, 4]
        runner.close()

    def test_logsumexp_is_that_of_the_whole_row(self, runner: Runner) -> None:
        readout = run_step(runner, [TokenRun(0, TOKENS[0], rows=6)])
        for row, found in enumerate(readout.logsumexp):
            exact = np.log(np.exp(readout.full_row(row).astype(np.float64)).sum())
            assert abs(found - exact) <= 1e-5 + 1e-6 * abs(exact)

    def test_targets_are_read_where_a_run_has_them(self, runner: Runner) -> None:
        with_targets = TokenRun(1, TOKENS[0], rows=3, targets=[7, 95, 0])
        readout = run_step(runner, [TokenRun(4, [1, 2], rows=2), with_targets, TokenRun(0, [5], rows=0, targets=[])])
        found = readout.target_logits
        assert np.isnan(found).tolist() == [True, True, False, False, False]
        assert found[2:].tolist() == [readout.full_row(row)[token] for row, token in ((2, 7), (3, 95), (4, 0))]

    # Masks

    @pytest.mark.parametrize("vocab", [5, 32, 95, 65537])
    def test_candidates_are_the_greatest_of_those_that_the_mask_allows(
        self, make_runner: MakeRunner, vocab: int
    ) -> None:
        model = random_model(tiny_shape(layers=1, width=16, vocab=vocab), seed=24)
        runner = make_runner(model, num_slots=3, max_tokens=64, max_rows=32, num_candidates=NUM_CANDIDATES)
        tokens = [token % vocab for token in TOKENS[0]]
        allowed = some_allowed(vocab)  # [rows, V]
        batch = [
            TokenRun(0, tokens[:3], rows=2, targets=[1, 2]),
            TokenRun(1, tokens, rows=len(allowed), masks=lambda: pack_masks(allowed)),
            TokenRun(2, tokens[:1], rows=1, masks=lambda: pack_masks(allowed[:1])),
        ]
        readout = run_step(runner, batch)
        every = np.ones((2, vocab), np.bool_)
        for row, mask in enumerate([*every, *allowed, allowed[0]]):
            full = readout.full_row(row)
            ids = np.argsort(np.where(mask, -full, np.inf), kind="stable")[: min(NUM_CANDIDATES, mask.sum())]
            assert readout.ids[row, : len(ids)].tolist() == ids.tolist()
            assert readout.logits[row, : len(ids)].tolist() == full[ids].tolist()
            assert (readout.logits[row, len(ids) :] == -np.inf).all()
            for found, chosen in ((readout.logsumexp, full), (readout.allowed_logsumexp, full[mask])):
                exact = np.log(np.exp(chosen.astype(np.float64)).sum())
                assert abs(found[row] - exact) <= 1e-5 + 1e-6 * abs(exact)
        assert readout.allowed_logsumexp[:2].tolist() == readout.logsumexp[:2].tolist()
        assert readout.sound.all()
        alone = run_step(runner, [TokenRun(0, [0], rows=1)])  # the previous step's masks are gone
        assert alone.logits[0, 0] == alone.full_row(0).max()
        runner.close()

    def test_masks_are_made_once_a_step_and_may_allow_all(self, runner: Runner) -> None:
        made: list[int] = []
        write_states(runner)
        expected = run_step(runner, [TokenRun(0, [1], rows=1), TokenRun(1, [2], rows=1)])
        few = np.zeros((1, SHAPE.vocab_size), np.bool_)
        few[0, :3] = True

        def make(slot: int, masks: NDArray[np.uint32] | None) -> Callable[[], NDArray[np.uint32] | None]:
            def masks_of_slot() -> NDArray[np.uint32] | None:
                made.append(slot)
                return masks

            return masks_of_slot

        for second in (None, pack_masks(few)):
            write_states(runner)
            ticket = runner.submit(
                [TokenRun(0, [1], rows=1, masks=make(0, None)), TokenRun(1, [2], rows=1, masks=make(1, second))]
            )
            assert made == [0, 1]
            made.clear()
            readout = runner.collect(ticket)
            assert readout.logits[0].tolist() == expected.logits[0].tolist()
            assert set(readout.ids[1, :3].tolist()) == {0, 1, 2} if second is not None else True

    def test_allowed_logits_far_below_the_greatest_keep_their_sum(self, make_runner: MakeRunner) -> None:
        head = 1000 * MODEL.tensor("head.weight")
        runner = make_runner(TensorModel(SHAPE, {**MODEL.tensors, "head.weight": head}), **LIMITS)
        full = run_step(runner, [TokenRun(0, [1], rows=1)]).full_row(0)
        least = np.argsort(full)[:2]
        mask = np.zeros((1, SHAPE.vocab_size), np.bool_)
        mask[0, least] = True
        runner.write_state(0, None)
        readout = run_step(runner, [TokenRun(0, [1], rows=1, masks=lambda: pack_masks(mask))])
        exact = np.logaddexp(*full[least].astype(np.float64))
        assert readout.allowed_logsumexp[0] == pytest.approx(exact, rel=1e-6)
        assert readout.ids[0, :2].tolist() == least[::-1].tolist()
        runner.close()

    @pytest.mark.parametrize(
        ("masks", "field"),
        [
            (np.ones((1, 3), np.uint32), "run 1: masks"),
            (np.ones((2, 4), np.uint32), "run 1: masks"),
            (np.ones((2, 3), np.int32), "run 1: masks"),
        ],
    )
    def test_masks_that_do_not_fit_are_refused(self, runner: Runner, masks: NDArray[np.uint32], field: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            runner.submit([TokenRun(0, [1]), TokenRun(1, [1, 2, 3], rows=2, masks=lambda: masks)])
        assert caught.value.field == field

    # Steps in flight

    def test_two_steps_in_flight_give_what_they_give_one_after_the_other(self, runner: Runner) -> None:
        first = [TokenRun(0, TOKENS[0][:9], rows=3), TokenRun(1, TOKENS[1][:4], rows=1)]
        second = [
            TokenRun(1, TOKENS[1][4:20], rows=2),
            TokenRun(2, TOKENS[2][:5]),
            TokenRun(0, TOKENS[0][9:10], rows=1),
        ]
        write_states(runner)
        expected = [values_of(run_step(runner, batch)) for batch in (first, second)]
        states = [runner.read_state(slot) for slot in range(NUM_SLOTS)]
        write_states(runner)
        tickets = [runner.submit(batch) for batch in (first, second)]
        found = [runner.collect(ticket) for ticket in tickets]
        for readout, values in zip(found, expected, strict=True):
            assert_same_values(values_of(readout), values)
        for slot, state in enumerate(states):
            assert_equal_states(runner.read_state(slot), state)

    def test_a_third_step_may_be_submitted_before_the_first_is_collected(self, runner: Runner) -> None:
        batches = [[TokenRun(0, TOKENS[0][step : step + 1], rows=step % 2)] for step in range(5)]
        write_states(runner)
        expected = [run_step(runner, batch).logits for batch in batches]
        write_states(runner)
        tickets = [runner.submit(batch) for batch in batches]
        for ticket, logits in zip(tickets, expected, strict=True):
            assert np.array_equal(runner.collect(ticket).logits, logits)

    def test_states_are_written_read_and_copied_in_order_with_steps(self, runner: Runner) -> None:
        first, second = [TokenRun(0, [3, 4]), TokenRun(1, [5])], [TokenRun(0, [6], rows=1), TokenRun(2, [7], rows=1)]

        def run(*, in_flight: bool) -> list[dict[str, F32]]:
            write_states(runner)
            tickets = [runner.submit(first)]
            if not in_flight:
                runner.collect(tickets.pop())
            runner.copy_state(0, 2)
            read = runner.read_state(1)
            runner.write_state(1, None)
            tickets.append(runner.submit(second))
            runner.copy_state(2, 3)
            runner.write_state(0, None)
            for ticket in tickets:
                runner.collect(ticket)
            return [read, *(runner.read_state(slot) for slot in range(NUM_SLOTS))]

        for found, expected in zip(run(in_flight=True), run(in_flight=False), strict=True):
            assert_equal_states(found, expected)

    def test_a_ticket_is_collected_once_and_in_order(self, runner: Runner) -> None:
        first, second = runner.submit([TokenRun(0, [1], rows=1)]), runner.submit([TokenRun(0, [2], rows=1)])
        with pytest.raises(InvalidRequestError, match=rf"ticket: {re.escape(repr(second))}.*expected .*, the oldest"):
            runner.collect(second)
        runner.collect(first)
        with pytest.raises(InvalidRequestError, match="ticket: "):
            runner.collect(first)
        runner.collect(second)
        with pytest.raises(InvalidRequestError, match="no step is in flight"):
            runner.collect(second)

    # States

    def test_limits_are_those_asked_for(self, runner: Runner) -> None:
        assert runner.shape == SHAPE
        assert (runner.num_slots, runner.max_tokens, runner.max_rows) == (NUM_SLOTS, MAX_TOKENS, MAX_ROWS)

    def test_a_read_is_of_the_moment_when_it_was_started(self, runner: Runner) -> None:
        reads, expected = [], []
        for round_ in range(7):  # more than are under way at the same time
            state = {name: values + round_ for name, values in random_state().items()}
            runner.write_state(1, state)
            reads.append(runner.start_read(1))
            expected.append(state)
            runner.write_state(1, None)
            run_step(runner, [TokenRun(1, [3])])
        for round_ in (5, 6, *range(5), 0):
            assert_equal_states(reads[round_].result(), expected[round_])
        assert all(read.done() for read in reads)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.differing_executors])
    @given(changes=st.lists(_CHANGES, max_size=12))
    def test_changes_of_states_give_the_same_together(
        self, runner: Runner, changes: list[tuple[str, int, int]]
    ) -> None:
        def change_all() -> list[dict[str, F32]]:
            reads: list[PendingState] = []
            for kind, slot, other in changes:
                match kind:
                    case "write":
                        runner.write_state(slot, {name: values + other for name, values in random_state().items()})
                    case "reset":
                        runner.write_state(slot, None)
                    case "copy":
                        runner.copy_state(slot, other)
                    case "read":
                        reads.append(runner.start_read(slot))
                    case "run":
                        run_step(runner, [TokenRun(slot, [5 + other])])
            return [read.result() for read in reads]

        write_states(runner)
        expected = change_all() + [runner.read_state(slot) for slot in range(NUM_SLOTS)]
        write_states(runner)
        with runner.together():
            found = change_all()
        for one, other in zip(found + [runner.read_state(slot) for slot in range(NUM_SLOTS)], expected, strict=True):
            assert_equal_states(one, other)

    def test_a_read_is_done_once_later_work_is(self, runner: Runner) -> None:
        write_states(runner)
        read = runner.start_read(2)
        run_step(runner, [TokenRun(2, [1], rows=1)])
        assert read.done()
        read.result()["wkv"][:] = 0
        assert_equal_states(read.result(), random_state())

    def test_states_are_copied_in_and_out(self, runner: Runner) -> None:
        state = random_state()
        runner.write_state(0, state)
        state["wkv"][:] = 0
        runner.read_state(0)["att_shift"][:] = 0
        assert_equal_states(runner.read_state(0), random_state())

    def test_a_step_leaves_other_slots_alone(self, runner: Runner) -> None:
        runner.write_state(1, random_state())
        run_step(runner, [TokenRun(0, TOKENS[0], rows=1), TokenRun(2, [4], rows=1)])
        assert_equal_states(runner.read_state(1), random_state())

    # Errors

    @pytest.mark.parametrize(
        ("batch", "field"),
        [
            ([], "batch"),
            ([TokenRun(NUM_SLOTS, [1])], "run 0: slot"),
            ([TokenRun(0, [1]), TokenRun(-1, [1])], "run 1: slot"),
            ([TokenRun(2, [1]), TokenRun(0, [1]), TokenRun(2, [1])], "run 2: slot"),
            ([TokenRun(0, [1]), TokenRun(1, [])], "run 1: tokens"),
            ([TokenRun(0, [1] * 100), TokenRun(1, [1] * 29)], "batch tokens"),
            ([TokenRun(0, [1] * 10, 9), TokenRun(1, [1] * 10, 8)], "batch rows"),
            ([TokenRun(0, [1, 2], rows=3)], "run 0: rows"),
            ([TokenRun(0, [0, SHAPE.vocab_size])], "run 0: token 1"),
            ([TokenRun(0, [-1])], "run 0: token 0"),
            ([TokenRun(0, [1, 2], rows=2, targets=[1])], "run 0: targets"),
            ([TokenRun(0, [1], rows=1, targets=[SHAPE.vocab_size])], "run 0: target 0"),
        ],
    )
    def test_a_bad_batch_is_refused_and_changes_nothing(
        self, runner: Runner, batch: list[TokenRun], field: str
    ) -> None:
        for slot in range(NUM_SLOTS):
            runner.write_state(slot, random_state())
        with pytest.raises(InvalidRequestError) as caught:
            run_step(runner, batch)
        assert caught.value.field == field
        for slot in range(NUM_SLOTS):
            assert_equal_states(runner.read_state(slot), random_state())

    @pytest.mark.parametrize("slot", [-1, NUM_SLOTS])
    def test_a_slot_that_does_not_exist_is_refused(self, runner: Runner, slot: int) -> None:
        with pytest.raises(InvalidRequestError, match="slot"):
            runner.write_state(slot, None)
        with pytest.raises(InvalidRequestError, match="slot"):
            runner.read_state(slot)
        with pytest.raises(InvalidRequestError, match="slot"):
            runner.start_read(slot)
        with pytest.raises(InvalidRequestError, match="source slot"):
            runner.copy_state(slot, 0)
        with pytest.raises(InvalidRequestError, match="target slot"):
            runner.copy_state(0, slot)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"ffn_shift": None}, r"state: holds the fields \['att_shift', 'wkv'\]"),
            ({"more": np.zeros(1, np.float32)}, "state: holds the fields"),
            ({"wkv": np.zeros((1, 4, 16, 16), np.float32)}, r"state: wkv has shape \[1, 4, 16, 16\].*\[2, 4, 16, 16\]"),
            ({"att_shift": np.zeros((2, 64))}, "state att_shift: type float64.*float32"),
        ],
    )
    def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
        self, runner: Runner, change: dict[str, Any], message: str
    ) -> None:
        runner.write_state(0, random_state())
        state = {name: values for name, values in {**random_state(), **change}.items() if values is not None}
        with pytest.raises(StateError, match=message):
            runner.write_state(0, state)
        assert_equal_states(runner.read_state(0), random_state())

    def test_closing_twice_does_nothing_more(self, make_runner: MakeRunner) -> None:
        runner = make_runner(MODEL, num_slots=1, max_tokens=4, max_rows=1, num_candidates=1)
        runner.close()
        runner.close()


def some_allowed(vocab_size: int) -> NDArray[np.bool_]:
    """Return rows of allowed tokens: all, one token, the last, a few, half of all, and all except one. [rows, V]"""
    chance = np.random.default_rng(25)
    allowed = np.zeros((6, vocab_size), np.bool_)
    allowed[0] = True
    allowed[1, chance.integers(vocab_size)] = True
    allowed[2, -1] = True
    allowed[3, chance.integers(vocab_size, size=NUM_CANDIDATES // 2)] = True
    allowed[4] = chance.random(vocab_size) < 0.5
    allowed[4, 0] = True
    allowed[5] = True
    allowed[5, chance.integers(vocab_size)] = False
    return allowed


def write_states(runner: Runner) -> None:
    """Write the same state to every slot."""
    for slot in range(NUM_SLOTS):
        runner.write_state(slot, random_state())


def values_of(readout: Readout) -> list[Array]:
    """Return all values of a read-out, its whole rows included."""
    rows = [readout.full_row(row) for row in range(len(readout.ids))]
    return [
        readout.ids,
        readout.logits,
        readout.logsumexp,
        readout.allowed_logsumexp,
        readout.target_logits,
        readout.sound,
        *rows,
    ]


def assert_same_values(found: list[Array], expected: list[Array]) -> None:
    assert len(found) == len(expected)
    for values, others in zip(found, expected, strict=True):
        assert np.array_equal(values, others, equal_nan=values.dtype.kind == "f")
