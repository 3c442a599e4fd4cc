"""Where on a prompt checkpoints are made: pure functions of lengths and positions.

A recurrent state can't be cut in the middle, so a prefill chunk must end where a checkpoint is wanted. The positions
are those from which later prompts are likely to go on: where the client says so, where this prompt leaves a path
that others took, where it ends, and where the last turns of a chat end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from states.cache.checkpoint import CheckpointKind


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """Bounds on what one prompt may store."""

    max_checkpoints: int = 8  # the prompt's end included
    min_gap: int = 32  # tokens that a branch point saves over the checkpoint before it, or between turns and others

    def __post_init__(self) -> None:
        if self.max_checkpoints < 1 or self.min_gap < 1:
            raise ValueError(f"max_checkpoints and min_gap must be at least 1: {self}")


@dataclass(frozen=True, slots=True)
class CheckpointPoint:
    """A position at which a prefill chunk ends and the state is kept; `position` tokens lie before it."""

    position: int
    kind: CheckpointKind
    logits: bool  # whether the logits of the last token before it are kept too


def plan_checkpoints(
    length: int,
    saved: int,
    known: int,
    turns: Iterable[int] = (),
    marks: Iterable[int] = (),
    limits: CheckpointLimits | None = None,
) -> tuple[CheckpointPoint, ...]:
    """The cuts of a prompt of `length` tokens, ascending, none of them at or before `saved`.

    `saved` tokens come from the cache, `known` is how far the prompt follows a known path (both as the look-up says),
    `turns` are the positions at which the turns of a chat end, `marks` those that the client set. The prompt's end is
    always there, with its logits, unless all of it is saved; then marks, the branch point and turns, the later the
    sooner, as long as the limits allow. A branch point counts however near the end it is: other prompts leave there,
    and the checkpoints after it are of no use to them.
    """
    limits = limits or CheckpointLimits()
    if saved >= length:
        return ()
    wanted = [
        *((position, CheckpointKind.MARK) for position in sorted(set(marks), reverse=True)),
        (known, CheckpointKind.BRANCH),
        *((position, CheckpointKind.TURN) for position in sorted(set(turns), reverse=True)),
    ]
    chosen = {length: CheckpointKind.PROMPT_END}
    for position, kind in wanted:
        if len(chosen) == limits.max_checkpoints:
            break
        if saved < position < length and _is_worth_it(position, kind, {saved, *chosen}, limits.min_gap):
            chosen[position] = kind
    return tuple(CheckpointPoint(position, chosen[position], logits=position == length) for position in sorted(chosen))


def _is_worth_it(position: int, kind: CheckpointKind, others: set[int], min_gap: int) -> bool:
    match kind:
        case CheckpointKind.MARK:
            return position not in others
        case CheckpointKind.BRANCH:
            return position not in others and all(other > position or position - other >= min_gap for other in others)
        case _:
            return all(abs(position - other) >= min_gap for other in others)
