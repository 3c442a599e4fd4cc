"""Where the runs of a prompt end because its state is kept there, and which prompts wait for which.

A recurrent state can't be cut in the middle, so a run must end where a checkpoint is wanted: at the positions from
which later prompts are likely to go on, and where prompts that arrived meanwhile need it. Those wait until the running
prompt has passed that position, then look the cache up again and go on from there (single flight). If the running
prompt dies, whoever of the waiters asks first runs from what the cache has by then.

    wait = flights.find(prefix, saved)                   # `saved` is what the cache would save now
    if wait is not None: wait.claim(); hold the request back until wait.ready, then ask again
    plan = flights.lead(prefix, saved, plan_checkpoints(...), waypoints)    # and those of waypoints.py
    while the prompt runs:
        submit a run that ends at plan.next() at the latest; plan.submit(its end)
        when it is done: if plan.at(its end): keep a checkpoint; plan.advance(its end)
    plan.close()                                         # at the prompt's end, or at once on any failure

Pure bookkeeping on the scheduler's one thread: no locks, no clock, no cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from rnn_engine.scheduler.waypoints import Waypoints
from states.cache.checkpoint import CheckpointKind
from states.tokens import TOKEN_BYTES, shared_tokens

MAX_CHECKPOINTS = 8  # of one prompt, its end included
MIN_GAP = 32  # tokens that a branch point saves over the checkpoint before it, or between turns and other checkpoints
MIN_SHARED = 32  # tokens that must be gained for a prompt to wait


@dataclass(frozen=True, slots=True)
class CheckpointPoint:
    """A position at which a run ends and the state is kept; `position` tokens lie before it."""

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
    """Return the checkpoint points of a prompt of `length` tokens, ascending, none of them at or before `saved`.

    `saved` tokens come from the cache, `known` is how far the prompt follows a known path (both as the look-up says),
    `turn_positions` are those at which the turns of a chat end, `checkpoint_positions` those that the client set. The
    prompt's end is always there, with its logits, unless all of it is saved; then those of the client, the branch point
    and turns, the later the sooner, at most `max_checkpoints`. A branch point counts however near the end it is: other
    prompts leave there, and the checkpoints after it are of no use to them.
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
    """What of a prompt others may share, from its beginning on, and the root of the state that it starts from."""

    root: str
    packed: bytes

    @property
    def length(self) -> int:
        """In tokens."""
        return len(self.packed) // TOKEN_BYTES


class CheckpointPlan:
    """The checkpoint points of one running prompt that have not been passed; waiters may add some."""

    def __init__(
        self,
        prefix: PromptPrefix | None = None,
        saved: int = 0,
        points: Iterable[CheckpointPoint] = (),
        waypoints: Waypoints | None = None,
    ) -> None:
        """Without a `prefix` nobody may wait for the prompt. `saved` tokens of it need not be run."""
        self.prefix = prefix
        self.position = saved  # tokens that have been run, and whose checkpoints have been kept
        self.submitted = saved  # those of steps in flight included
        self.open = prefix is not None and saved < prefix.length  # others may wait for it
        self._points = {point.position: point for point in points}
        self._waypoints = waypoints

    def next(self) -> CheckpointPoint | None:
        """Return the nearest point at which no submitted run ends."""
        ahead = [point for position, point in self._points.items() if position > self.submitted]
        if self._waypoints is not None and (cut := self._waypoints.cut) is not None:
            ahead.append(_waypoint(cut))
        return min(ahead, key=attrgetter("position"), default=None)

    def at(self, position: int) -> CheckpointPoint | None:
        """Return the point at `position`, if one is there that has not been passed."""
        return self._points.get(position)

    def submit(self, end: int) -> None:
        """Note that a run up to `end` was submitted; nobody can claim a point up to there any more.

        A waypoint may become a point there.
        """
        self.submitted = end
        if self._waypoints is not None and self._waypoints.submit(end, is_point=end in self._points):
            self._points[end] = _waypoint(end)

    def advance(self, position: int) -> None:
        """Note that the prompt has been run up to `position`, and that the checkpoints up to there were kept."""
        self.position = position
        self.submitted = max(self.submitted, position)
        self._points = {at: point for at, point in self._points.items() if at > position}
        if self.prefix is not None and position >= self.prefix.length:
            self.close()

    def claim(self, position: int, *, logits: bool) -> None:
        """Add a point for a prompt that waits; `position` lies after what was submitted."""
        assert self.submitted < position, f"a claim at {position} of what was submitted up to {self.submitted}"
        planned = self._points.get(position)
        kind = CheckpointKind.BRANCH if planned is None else planned.kind
        self._points[position] = CheckpointPoint(position, kind, logits or (planned is not None and planned.logits))

    def close(self) -> None:
        """Note that the prompt is done, or will never be: nobody waits for it any longer. Idempotent."""
        self.open = False


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """What a prompt may wait for: that the prompt of `plan` has passed `position`."""

    plan: CheckpointPlan
    position: int
    logits: bool  # whether the waiting prompt ends there, where it can't go on without them

    def claim(self) -> None:
        """Have the state kept there."""
        self.plan.claim(self.position, logits=self.logits)

    @property
    def ready(self) -> bool:
        """Whether to look up and ask again: the state is there, or won't come."""
        return self.passed or not self.plan.open

    @property
    def passed(self) -> bool:
        """Whether the state was there to be kept; the cache may have had no room for it."""
        return self.plan.position >= self.position


class SingleFlight:
    """The running prompts that others may wait for. Waiters hold no resources, so a cancelled one needs no clean-up."""

    def __init__(self, min_shared: int = MIN_SHARED) -> None:
        """Nobody waits for a gain of fewer than `min_shared` tokens."""
        self._min_shared = min_shared
        self._plans: list[CheckpointPlan] = []

    def __len__(self) -> int:
        self._plans = [plan for plan in self._plans if plan.open]
        return len(self._plans)

    def find(self, prefix: PromptPrefix, saved: int, plans: Iterable[CheckpointPlan] | None = None) -> Wait | None:
        """Return what a prompt of which the cache has `saved` tokens should wait for; None where it should run.

        That is where a running prompt, one of `plans` if given, is not behind what the cache has and will pass a
        state that saves enough more; the one that saves most.
        """
        best: CheckpointPlan | None = None
        best_shared = saved + self._min_shared - 1
        for plan in self._plans if plans is None else plans:
            if not plan.open or plan.prefix is None or plan.prefix.root != prefix.root or plan.submitted < saved:
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
        """Return the plan of a prompt that runs from `saved` on; others may wait for it from now on."""
        plan = CheckpointPlan(prefix, saved, points, waypoints)
        if plan.open:
            self._plans = [other for other in self._plans if other.open]
            self._plans.append(plan)
        return plan
