"""Prompts that arrive together run their shared part once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnn_engine.scheduler.checkpoints import (
    CheckpointPlan,
    CheckpointPoint,
    PromptPrefix,
    SingleFlight,
    Wait,
    plan_checkpoints,
)
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.tokens import pack

ROOT = "none"
SHARED = list(range(100))


def join(flights: SingleFlight, tokens: Sequence[int], saved: int = 0, root: str = ROOT) -> CheckpointPlan | Wait:
    """Join a flight and wait if that saves tokens; else lead."""
    prefix = PromptPrefix(root, pack(tokens))
    found = flights.find(prefix, saved)
    if found is None:
        return flights.lead(prefix, saved)
    found.claim()
    return found


def lead(flights: SingleFlight, tokens: Sequence[int], saved: int = 0, root: str = ROOT) -> CheckpointPlan:
    role = join(flights, tokens, saved, root)
    assert isinstance(role, CheckpointPlan)
    return role


def wait(flights: SingleFlight, tokens: Sequence[int], saved: int = 0) -> Wait:
    role = join(flights, tokens, saved)
    assert isinstance(role, Wait)
    return role


def test_no_prompt_waits_for_one_in_the_background_unless_it_is_in_the_background_too() -> None:
    flights, packed = SingleFlight(), pack(SHARED)
    flights.lead(PromptPrefix(ROOT, packed, is_background=True), 0)
    assert flights.find(PromptPrefix(ROOT, packed), 0) is None
    assert flights.find(PromptPrefix(ROOT, packed, is_background=True), 0) is not None


@pytest.mark.parametrize(
    ("second", "position"),
    [
        pytest.param(SHARED, 100, id="equal"),
        pytest.param([*SHARED, 7, 8, 9], 100, id="extends the first"),
        pytest.param(SHARED[:60], 60, id="is a prefix of the first"),
        pytest.param([*SHARED[:70], 500, 501], 70, id="parts from the first"),
    ],
)
def test_a_second_prompt_waits_for_what_it_shares(second: list[int], position: int) -> None:
    flights = SingleFlight()
    first = lead(flights, SHARED)
    second_role = wait(flights, second)
    assert second_role.position == position
    assert first.next() == CheckpointPoint(position, CheckpointKind.BRANCH, logits=position == len(second))
    ready = []
    for passed in (position - 1, position):
        first.advance(passed)
        ready.append(second_role.ready)
    assert ready == [False, True]
    assert first.next() is None


def test_all_waiters_are_served_by_one_run() -> None:
    flights = SingleFlight()
    first = lead(flights, SHARED)
    roles = [wait(flights, [*SHARED[:shared], 999]) for shared in (90, 40, 60, 40)]
    for position, ready in ((40, [0, 1, 0, 1]), (60, [0, 1, 1, 1]), (90, [1, 1, 1, 1])):
        point = first.next()
        assert point is not None
        assert point.position == position
        first.advance(position)
        assert [role.ready for role in roles] == ready
    assert first.next() is None


def test_points_of_others_join_the_prompts_own() -> None:
    flights = SingleFlight()
    own = plan_checkpoints(100, saved=0, known=33, turn_positions=[66])
    first = flights.lead(PromptPrefix(ROOT, pack(SHARED)), 0, own)
    for prompt in (SHARED[:33], [*SHARED[:66], 7], SHARED):
        wait(flights, prompt)
    points = []
    while (point := first.next()) is not None:
        points.append(point)
        first.advance(point.position)
    assert points == [
        CheckpointPoint(33, CheckpointKind.BRANCH, logits=True),
        CheckpointPoint(66, CheckpointKind.TURN, logits=False),
        CheckpointPoint(100, CheckpointKind.PROMPT_END, logits=True),
    ]


def test_a_waiter_takes_over_where_the_leader_dies_and_the_others_wait_for_it() -> None:
    flights = SingleFlight()
    first = lead(flights, SHARED)
    waiting = [wait(flights, SHARED) for _ in range(3)]
    first.advance(30)
    first.close()
    assert all(role.ready for role in waiting)
    heir = lead(flights, SHARED, saved=30)
    assert heir.position == 30
    assert [wait(flights, SHARED, saved=30).plan for _ in range(2)] == [heir, heir]


def test_nobody_waits_for_a_state_that_was_passed_without_a_checkpoint() -> None:
    flights = SingleFlight()
    first = lead(flights, SHARED)
    first.advance(70)
    assert wait(flights, [*SHARED[:71], 500]).position == 71
    lead(flights, [*SHARED[:70], 500])


def test_nobody_waits_for_a_prompt_that_is_behind_the_cache() -> None:
    flights = SingleFlight()
    slow = lead(flights, SHARED)
    slow.advance(10)
    lead(flights, SHARED, saved=50)


def test_nobody_waits_for_a_small_gain() -> None:
    flights = SingleFlight(min_shared=32)
    lead(flights, SHARED)
    lead(flights, [*SHARED[:31], 500])
    wait(flights, [*SHARED[:32], 500])


def test_the_prompt_that_shares_most_is_waited_for() -> None:
    flights = SingleFlight()
    lead(flights, [*SHARED[:50], 900])
    longer = lead(flights, [*SHARED[:81], 901], saved=81)
    assert wait(flights, [*SHARED[:50], 900, 1]).position == 51
    longer.close()
    longest = lead(flights, SHARED, saved=60)
    assert wait(flights, [*SHARED, 3], saved=60).plan is longest


def test_sequences_with_another_initial_state_share_nothing() -> None:
    flights = SingleFlight()
    lead(flights, SHARED)
    lead(flights, SHARED, root="tuned")


def test_a_closed_prompt_is_no_longer_waited_for() -> None:
    flights = SingleFlight()
    first = lead(flights, SHARED)
    first.close()
    first.close()
    assert len(flights) == 0
    lead(flights, SHARED)


PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple), min_size=1, max_size=6)
Prompt = tuple[int, ...]


class SmallScheduler:
    """A scheduler that runs one token a step, with a cache that keeps all states at the plans' points."""

    def __init__(self, prompts: list[Prompt]) -> None:
        self.flights = SingleFlight(min_shared=1)
        self.kept: set[Prompt] = set()
        self.runs: dict[Prompt, int] = {}
        self.roles: dict[int, CheckpointPlan | Wait] = {}
        self.waiting = dict(enumerate(prompts))

    def admit(self) -> None:
        """Let every prompt that doesn't wait look up and join."""
        for number, prompt in list(self.waiting.items()):
            role = self.roles.get(number)
            if isinstance(role, CheckpointPlan) or (isinstance(role, Wait) and not role.ready):
                continue
            saved = max((n for n in range(len(prompt) + 1) if prompt[:n] in self.kept), default=0)
            if saved == len(prompt):
                self.leave(number)
            else:
                self.roles[number] = join(self.flights, prompt, saved)

    def leads(self) -> dict[int, CheckpointPlan]:
        return {number: role for number, role in self.roles.items() if isinstance(role, CheckpointPlan)}

    def step(self, number: int, role: CheckpointPlan) -> None:
        position = role.position + 1
        prefix = self.waiting[number][:position]
        self.runs[prefix] = self.runs.get(prefix, 0) + 1
        point = role.next()
        if position == len(self.waiting[number]) or (point is not None and position == point.position):
            self.kept.add(prefix)
        role.advance(position)
        if position == len(self.waiting[number]):
            role.close()
            self.leave(number)

    def leave(self, number: int) -> None:
        del self.waiting[number]
        self.roles.pop(number, None)


@given(PROMPTS, st.data())
def test_each_prefix_runs_once_and_once_more_for_each_death(prompts: list[Prompt], data: st.DataObject) -> None:
    scheduler = SmallScheduler(prompts)
    deaths = 0
    while scheduler.waiting:
        scheduler.admit()
        leads = scheduler.leads()
        assert leads or not scheduler.waiting, "everybody waits for nobody"
        if leads:
            number = data.draw(st.sampled_from(sorted(leads)))
            if data.draw(st.integers(0, 9)) == 0:
                deaths += 1
                leads[number].close()
                scheduler.leave(number)
            else:
                scheduler.step(number, leads[number])
    assert len(scheduler.flights) == 0
    assert max(scheduler.runs.values(), default=0) <= 1 + deaths


def test_prompts_that_join_before_the_first_step_run_each_prefix_once() -> None:
    prompts = [[*SHARED, *range(1000 + 50 * n, 1040 + 50 * n)] for n in range(8)]
    flights = SingleFlight()
    first = lead(flights, prompts[0])
    waiting = [wait(flights, prompt) for prompt in prompts[1:]]
    tokens_run = 0
    while (point := first.next()) is not None:
        tokens_run += point.position - first.position
        first.advance(point.position)
    tokens_run += len(prompts[0]) - first.position
    first.close()
    assert all(role.ready for role in waiting)
    for prompt in prompts[1:]:
        follower = lead(flights, prompt, saved=100)
        tokens_run += len(prompt) - follower.position
    assert tokens_run == len(SHARED) + 8 * 40


def test_one_that_is_kept_back_may_ask_what_a_new_prompt_would_save() -> None:
    flights = SingleFlight()
    first, second = lead(flights, SHARED), flights.lead(PromptPrefix(ROOT, pack([*SHARED, 7])), 50)
    prefix = PromptPrefix(ROOT, pack([*SHARED, 7, 8]))
    assert flights.find(prefix, 50, [first]) is None  # it is behind
    found = flights.find(prefix, 50, [second])
    assert found is not None
    assert (found.plan, found.position, found.passed) == (second, 101, False)
    assert second.next() is None  # nothing is claimed yet
