"""Plans at which positions of a prompt its state is saved, and which prompts wait for a running one to share its work.

A recurrent state can't be cut back to an earlier position, so a run must end wherever a checkpoint is wanted. Some of
these positions are likely starts of later prompts. Others are needed by prompts that arrive while this one runs. Such a
prompt waits until the running one has passed the position, then looks in the cache again and continues from there
(single flight). If the running prompt ends early, the first waiter that looks again runs from what the cache has by
then.

    wait = flights.find(prefix, saved)                   # `saved` is what the cache would save now
    if wait is not None: wait.claim(); hold the request back until wait.ready, then ask again
    plan = flights.lead(prefix, saved, plan_checkpoints(...), waypoints)    # `Waypoints` of the same prompt
    while the prompt runs:
        submit a run that ends at plan.next() at the latest; plan.submit(its end)
        when it is done: if plan.at(its end): save a checkpoint; plan.advance(its end)
    plan.close()                                         # at the prompt's end, or at once on any failure

All of this is bookkeeping on the scheduler's one thread: it uses no locks, no clock and no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.tokens import TOKEN_BYTES, shared_tokens

# Waypoints are states kept along a long prompt, so that a later prompt need not run all of a common part again.
#
# The position at which a later prompt departs can't be known. It may change a paragraph, or a single token: the last
# token of a text may merge with the first of what follows. Waypoints bound what that costs.
#
# This is promised while memory has room (see the cache's `eviction.py`), and for the part of the prompt that was run
# and not cached: a later prompt that shares half or more of a prompt of `LEAST_STEPS` full steps finds a state at nine
# tenths of the common part, or later. So the first waypoint lies just before the middle, and each later one follows the
# kept state before it by at most a ninth of that state's position. That makes seven or eight waypoints, never more than
# 16, and fewer if other states are kept.
#
# A waypoint lies at the end of a run, and cutting a run costs a step. So the end of a run becomes a waypoint if it is
# far enough from the kept state before it. Otherwise a run is cut as late as the promise allows, at the end of a line
# or a sentence if one is near. Steps of few tokens cost nearly as much as full ones, so a prompt of fewer steps is cut
# once at most. The promise then holds for prompts that share 19 of 20 tokens; others lose about a step's tokens.

LEAST_STEPS = 10  # full steps that a prompt must take for the whole promise to hold
LEAST_CUT_STEPS = 4  # full steps that a prompt must still take for a run of it to be cut
LEAST_LENGTH = 256  # tokens that a prompt must have for any waypoint

_MOST_LOOKED_AT = 64  # tokens before the latest cut that are searched for the end of a line or a sentence
_SENTENCE_ENDS = tuple(mark.encode() for mark in ".!?。！？")

FindBreak: TypeAlias = Callable[[int, int], int | None]
"""Takes an earliest and a latest position, and returns the best one to cut the text, if there is one."""


@dataclass(frozen=True, slots=True)
class _Window:
    """The range of positions in a prompt, from `earliest` to `cut`, at which its next waypoint (a saved state) may lie.

    The first run that ends at or after `earliest` makes the waypoint. No run may pass `cut`.
    """

    earliest: int
    cut: int | None  # None = no run is cut for it


class Waypoints:
    """Chooses the waypoints of one prompt, for later prompts that share a part of it, as its runs are submitted."""

    def __init__(self, length: int, saved: int, points: Iterable[int], step_tokens: int, find_break: FindBreak) -> None:
        """Prepare for a prompt of `length` tokens, of which the first `saved` come from the cache.

        States are saved at the positions `points` anyway. A step runs at most `step_tokens`. `find_break` returns the
        best position to end a run; see `FindBreak`.
        """
        self._length = length
        self._points = sorted(point for point in points if saved < point < length)
        self._step = step_tokens
        self._find_break = find_break
        self._is_cut = length - saved >= LEAST_CUT_STEPS * step_tokens
        self._kept = saved  # a position whose state is or will be kept, the last one before the window
        self._window = self._next_window()

    @property
    def cut(self) -> int | None:
        """The last position at which the prompt's next run may end, so that a waypoint is saved; None if any may."""
        return None if self._window is None else self._window.cut

    def submit(self, end: int, *, is_point: bool) -> bool:
        """Record that the prompt was submitted up to position `end`; return True if its state there becomes a waypoint.

        `is_point` says that the state is saved there anyway; it is no waypoint then.
        """
        is_waypoint = not is_point and self._window is not None and self._window.earliest <= end
        if is_point or is_waypoint:
            self._kept = end
            self._window = self._next_window()
        return is_waypoint

    def _next_window(self) -> _Window | None:
        if self._length < LEAST_LENGTH:
            return None
        if self._length < LEAST_STEPS * self._step:
            return self._window_of_short()
        while True:
            is_early = self._is_early(self._kept)
            latest = (self._length - 1) // 2 if is_early else 10 * self._kept // 9  # just before the middle, at first
            if latest >= self._length:
                return None
            near = [point for point in self._points if self._kept < point <= latest]
            if not near or self._is_early(near[-1]):
                earliest = -(-9 * self._length // 20) if is_early else (self._kept + latest + 1) // 2
                cut = self._cut_before(earliest, latest)
                return _Window(max(earliest, cut - self._step + 1), cut)
            self._kept = near[-1]

    def _is_early(self, position: int) -> bool:
        """Return True if a state at `position` is too early to be of use to a prompt that shares half of this one."""
        return 20 * position < 9 * self._length

    def _window_of_short(self) -> _Window | None:
        """Return where the only waypoint of a prompt of few steps may lie, at nine tenths or before; None for none."""
        earliest_cut, latest = -(-9 * self._length // 10), 19 * self._length // 20
        if self._kept >= earliest_cut or any(earliest_cut <= point <= latest for point in self._points):
            return None
        earliest = min(max(self._kept + self._step // 2, self._length // 2 - self._step + 1), earliest_cut)
        return _Window(earliest, self._cut_before(earliest_cut, latest) if self._is_cut else None)

    def _cut_before(self, earliest: int, latest: int) -> int:
        first = latest - min((latest - earliest) // 2, _MOST_LOOKED_AT)
        return self._find_break(first, latest) or latest


def find_break(tokens: Sequence[int], token_bytes: Callable[[int], bytes], earliest: int, latest: int) -> int | None:
    """Return the last position at which a line ends, or else a sentence; None if neither does."""
    sentence = None
    for position in range(latest, earliest - 1, -1):
        data = token_bytes(tokens[position - 1])
        if data.endswith(b"\n"):
            return position
        if sentence is None and data.rstrip(b" ").endswith(_SENTENCE_ENDS):
            sentence = position
    return sentence


MAX_CHECKPOINTS = 8  # of one prompt, its end included, without waypoints and claims
MIN_GAP = 32  # tokens that a branch point saves over the checkpoint before it, or between turns and other checkpoints
MIN_SHARED = 32  # tokens that a prompt must gain by waiting


@dataclass(frozen=True, slots=True)
class CheckpointPoint:
    """A position in a prompt at which a run ends so that the state there can be saved."""

    position: int
    kind: CheckpointKind
    logits: bool  # whether the logits of the last token before it are kept too


def plan_checkpoints(
    length: int,
    saved: int,
    known: int,
    turn_positions: Iterable[int] = (),
    checkpoint_positions: Iterable[int] = (),
    max_checkpoints: int = MAX_CHECKPOINTS,
) -> tuple[CheckpointPoint, ...]:
    """Return the positions at which to save the states of a prompt of `length` tokens, ascending, all after `saved`.

    The first `saved` tokens come from the cache, and the first `known` follow a path that the cache knows; the look-up
    gives both. The turns of a chat end at `turn_positions`, and the client set `checkpoint_positions`.

    The prompt's end is always a point, with its logits, unless all of the prompt is saved. Then come the client's
    positions, the branch point (`known`) and the ends of turns, later ones first, until there are `max_checkpoints`.
    The branch point is chosen however near the end it is: other prompts leave this one there, and the checkpoints after
    it are of no use to them.
    """
    if saved >= length:
        return ()
    wanted = [
        *((position, CheckpointKind.MARK) for position in sorted(set(checkpoint_positions), reverse=True)),
        (known, CheckpointKind.BRANCH),
        *((position, CheckpointKind.TURN) for position in sorted(set(turn_positions), reverse=True)),
    ]
    chosen = {length: CheckpointKind.PROMPT_END}
    for position, kind in wanted:
        if len(chosen) == max_checkpoints:
            break
        if saved < position < length and _is_worth_it(position, kind, {saved, *chosen}):
            chosen[position] = kind
    return tuple(CheckpointPoint(position, chosen[position], logits=position == length) for position in sorted(chosen))


def _waypoint(position: int) -> CheckpointPoint:
    return CheckpointPoint(position, CheckpointKind.WAYPOINT, logits=False)


def _is_worth_it(position: int, kind: CheckpointKind, others: set[int]) -> bool:
    match kind:
        case CheckpointKind.MARK:
            return position not in others
        case CheckpointKind.BRANCH:
            return position not in others and all(other > position or position - other >= MIN_GAP for other in others)
        case _:
            return all(abs(position - other) >= MIN_GAP for other in others)


@dataclass(frozen=True, slots=True)
class PromptPrefix:
    """The part of a prompt that other prompts may share: its packed tokens, and the cache root of its initial state."""

    root: str
    packed: bytes
    is_background: bool = False  # run below other prompts, so these don't wait for it

    @property
    def length(self) -> int:
        return len(self.packed) // TOKEN_BYTES


class CheckpointPlan:
    """The positions of one running prompt at which its state is yet to be saved. Waiting prompts may add positions."""

    def __init__(
        self,
        prefix: PromptPrefix | None = None,
        saved: int = 0,
        points: Iterable[CheckpointPoint] = (),
        waypoints: Waypoints | None = None,
    ) -> None:
        """Plan checkpoints after the first `saved` tokens. Others may wait for the prompt only if it has a `prefix`."""
        self.prefix = prefix
        self.position = saved  # tokens that have been run, and whose checkpoints have been kept
        self.submitted = saved  # tokens that have been run or are in flight
        self.open = prefix is not None and saved < prefix.length  # others may wait for it
        self._points = {point.position: point for point in points}
        self._waypoints = waypoints

    def next(self) -> CheckpointPoint | None:
        """Return the nearest position at which to save the state, after all submitted runs; None if there is none."""
        ahead = [point for position, point in self._points.items() if position > self.submitted]
        if self._waypoints is not None and (cut := self._waypoints.cut) is not None:
            ahead.append(_waypoint(cut))
        return min(ahead, key=attrgetter("position"), default=None)

    def at(self, position: int) -> CheckpointPoint | None:
        """Return the checkpoint planned at `position`; None if there is none, or if the prompt has passed it."""
        return self._points.get(position)

    def submit(self, end: int) -> None:
        """Record a run's end, which may become a waypoint. Other prompts can only claim later positions."""
        self.submitted = end
        if self._waypoints is not None and self._waypoints.submit(end, is_point=end in self._points):
            self._points[end] = _waypoint(end)

    def advance(self, position: int) -> None:
        """Record that states up to `position` were saved as planned. The end of the prefix closes the plan."""
        self.position = position
        self.submitted = max(self.submitted, position)
        self._points = {at: point for at, point in self._points.items() if at > position}
        if self.prefix is not None and position >= self.prefix.length:
            self.close()

    def claim(self, position: int, *, logits: bool) -> None:
        """Plan to save the state at `position`, after all submitted runs, for a prompt that waits for this one.

        With `logits`, the logits there are saved too.
        """
        assert self.submitted < position, f"a claim at {position} of what was submitted up to {self.submitted}"
        planned = self._points.get(position)
        kind = CheckpointKind.BRANCH if planned is None else planned.kind
        self._points[position] = CheckpointPoint(position, kind, logits or (planned is not None and planned.logits))

    def close(self) -> None:
        """Let no other prompt wait for this one any more, because its run is over. Idempotent."""
        self.open = False


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """One prompt's wait until the prompt of `plan` has passed `position`, the end of their common part."""

    plan: CheckpointPlan
    position: int
    logits: bool  # whether the waiting prompt ends at the position, and so needs the logits there to go on

    def claim(self) -> None:
        """Have the running prompt save its state at the awaited position, for the waiting prompt."""
        self.plan.claim(self.position, logits=self.logits)

    @property
    def ready(self) -> bool:
        """True if the running prompt has passed the position or never will; then look in the cache again."""
        return self.passed or not self.plan.open

    @property
    def passed(self) -> bool:
        """True if the running prompt has passed the awaited position.

        Its state was not saved there if the cache had no room.
        """
        return self.plan.position >= self.position


class SingleFlight:
    """Keeps the plans of all running prompts, so that prompts with a common beginning run it only once.

    A new prompt waits for a running one with the same beginning. Waiters hold no resources, so a cancelled one needs no
    clean-up.
    """

    def __init__(self, min_shared: int = MIN_SHARED) -> None:
        """Start without running prompts. A prompt waits for another only if that saves at least `min_shared` tokens."""
        self._min_shared = min_shared
        self._plans: list[CheckpointPlan] = []

    def __len__(self) -> int:
        self._plans = [plan for plan in self._plans if plan.open]
        return len(self._plans)

    def find(self, prefix: PromptPrefix, saved: int, plans: Iterable[CheckpointPlan] | None = None) -> Wait | None:
        """Return the wait for a running prompt that a new prompt should begin; None if it should run now.

        `prefix` is that of the new prompt, and the cache has the first `saved` of its tokens. A running prompt is worth
        waiting for if at least `saved` of its tokens were submitted, and more will be, up to the end of the common
        prefix. That must be at least `min_shared` tokens longer than `saved`. The prompt with the longest common prefix
        is chosen. `plans` are the running prompts to consider; None is all.
        """
        best: CheckpointPlan | None = None
        best_shared = saved + self._min_shared - 1
        for plan in self._plans if plans is None else plans:
            if not plan.open or plan.prefix is None or plan.prefix.root != prefix.root or plan.submitted < saved:
                continue
            if plan.prefix.is_background and not prefix.is_background:
                continue
            shared = shared_tokens(plan.prefix.packed, prefix.packed)
            if shared > max(best_shared, plan.submitted):
                best, best_shared = plan, shared
        return None if best is None else Wait(best, best_shared, logits=best_shared == prefix.length)

    def lead(
        self,
        prefix: PromptPrefix,
        saved: int,
        points: Iterable[CheckpointPoint] = (),
        waypoints: Waypoints | None = None,
    ) -> CheckpointPlan:
        """Make and return the plan of a prompt that runs from position `saved` on. Others may then wait for it."""
        plan = CheckpointPlan(prefix, saved, points, waypoints)
        if plan.open:
            self._plans = [other for other in self._plans if other.open]
            self._plans.append(plan)
        return plan
