"""The positions of checkpoints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.scheduler.checkpoints import CheckpointPoint, plan_checkpoints
from rnn_engine_states.cache.checkpoint import CheckpointKind

MARK, BRANCH, TURN, END = (CheckpointKind.MARK, CheckpointKind.BRANCH, CheckpointKind.TURN, CheckpointKind.PROMPT_END)
POSITIONS = st.lists(st.integers(-5, 320), max_size=12)


def point(position: int, kind: CheckpointKind, logits: bool) -> CheckpointPoint:
    return CheckpointPoint(position, kind, logits)


def test_a_lone_prompt_keeps_its_end() -> None:
    assert plan_checkpoints(100, saved=0, known=0) == (point(100, END, True),)


def test_a_prompt_that_is_saved_whole_keeps_nothing() -> None:
    assert plan_checkpoints(100, saved=100, known=100, turn_positions=[50], checkpoint_positions=[60]) == ()


def test_the_chunk_is_cut_where_a_prompt_leaves_a_known_path() -> None:
    assert plan_checkpoints(1000, saved=0, known=700) == (point(700, BRANCH, False), point(1000, END, True))


def test_a_branch_point_is_left_out_where_it_saves_little() -> None:
    assert plan_checkpoints(1000, saved=690, known=700) == (point(1000, END, True),)
    assert plan_checkpoints(1000, saved=0, known=31) == (point(1000, END, True),)
    assert plan_checkpoints(1000, saved=0, known=700, checkpoint_positions=[690]) == (
        point(690, MARK, False),
        point(1000, END, True),
    )


@pytest.mark.parametrize("known", [968, 969, 995, 999])
def test_a_branch_point_counts_however_near_the_end_is(known: int) -> None:
    assert plan_checkpoints(1000, saved=0, known=known) == (point(known, BRANCH, False), point(1000, END, True))
    assert plan_checkpoints(1000, saved=0, known=950, checkpoint_positions=[960]) == (
        point(950, BRANCH, False),
        point(960, MARK, False),
        point(1000, END, True),
    )


def test_a_turn_is_left_out_near_any_other_checkpoint() -> None:
    assert plan_checkpoints(1000, saved=0, known=500, turn_positions=[480, 510, 700, 980]) == (
        point(500, BRANCH, False),
        point(700, TURN, False),
        point(1000, END, True),
    )


def test_a_mark_counts_however_near_it_is() -> None:
    assert plan_checkpoints(100, saved=0, known=0, checkpoint_positions=[3, 99]) == (
        point(3, MARK, False),
        point(99, MARK, False),
        point(100, END, True),
    )


def test_of_many_turns_the_last_are_kept() -> None:
    cuts = plan_checkpoints(1000, saved=0, known=0, turn_positions=range(100, 1000, 100), max_checkpoints=4)
    assert cuts == (point(700, TURN, False), point(800, TURN, False), point(900, TURN, False), point(1000, END, True))


def test_marks_go_before_the_branch_point_and_that_before_turns() -> None:
    cuts = plan_checkpoints(
        1000, saved=0, known=500, turn_positions=[200, 800], checkpoint_positions=[300], max_checkpoints=3
    )
    assert cuts == (point(300, MARK, False), point(500, BRANCH, False), point(1000, END, True))


@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 300), POSITIONS, POSITIONS, st.integers(1, 6))
def test_cuts_ascend_inside_the_part_to_be_run_and_are_bounded(
    length: int, saved: int, known: int, turns: list[int], marks: list[int], most: int
) -> None:
    cuts = plan_checkpoints(length, saved, known, turns, marks, most)
    positions = [cut.position for cut in cuts]
    assert positions == sorted(set(positions))
    assert len(cuts) <= most
    assert all(saved < position <= length for position in positions)
    assert (positions[-1:] == [length]) == (saved < length)
    assert {cut.position for cut in cuts if cut.kind is MARK} <= set(marks)
    assert {cut.position for cut in cuts if cut.kind is TURN} <= set(turns)
