"""The simulated fleet: its time, its network, and what a load comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.fleet_simulator.clock import Clock
from tools.fleet_simulator.fleet import Counts, Plan
from tools.fleet_simulator.hardware import Hardware, Link
from tools.fleet_simulator.routes import FleetRoute, at_random, knowing_all, simulate, to_the_least_busy
from tools.fleet_simulator.trace import Trace, conversations, prefix_tokens

TRACE = Trace(rate=1.0, prefixes=3, prefix_tokens=200, turns=2, question_tokens=10, answer_tokens=20, think=0.5)
PLAN = Plan(machines=2, seconds=8.0, hardware=Hardware(), trace=TRACE)


def run(plan: Plan) -> Counts:
    return simulate(plan, at_random(1))


def test_actions_run_in_the_order_of_their_moments() -> None:
    clock, seen = Clock(), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, clock.now))

    clock.at(2.0, lambda: note("late"))
    clock.at(1.0, lambda: (note("first"), clock.at(0.5, lambda: note("past")))[0])  # type: ignore[func-returns-value]
    clock.at(1.0, lambda: note("second"))
    clock.at(9.0, lambda: note("never"))
    clock.run(until=3.0)
    assert seen == [("first", 1.0), ("second", 1.0), ("past", 1.0), ("late", 2.0)]
    assert clock.now == 3.0


def test_states_on_a_line_wait_for_each_other() -> None:
    link = Link(bandwidth=100.0)
    assert link.carry(50, now=1.0) == pytest.approx(1.5)
    assert link.carry(50, now=1.0) == pytest.approx(2.0)
    assert link.carry(50, now=9.0) == pytest.approx(9.5)
    assert link.moved == 150


def test_the_same_seed_gives_the_same_day() -> None:
    assert run(PLAN) == run(PLAN)
    assert run(PLAN) != run(replace(PLAN, seed=2))


def test_conversations_come_at_their_rate_and_the_first_texts_most_often() -> None:
    found = list(conversations(replace(TRACE, prefixes=10), 5, 200.0, seed=1))
    assert 850 < len(found) < 1150
    assert [one.begins for one in found] == sorted(one.begins for one in found)
    counts = [sum(one.prefix == prefix for one in found) for prefix in range(10)]
    assert counts[0] > 2 * counts[4] > 0
    assert prefix_tokens(TRACE, 1) == prefix_tokens(TRACE, 1) != prefix_tokens(TRACE, 2)


def test_every_token_is_cached_or_run() -> None:
    counts = run(PLAN)
    assert counts.answers > 10
    assert counts.answer_tokens == 20 * counts.answers
    assert counts.prompt_tokens == counts.cached_tokens + counts.run_tokens
    assert counts.cached_tokens > 0
    assert counts.failures == counts.moved_bytes == 0
    assert min(counts.first_tokens) >= PLAN.hardware.step + PLAN.hardware.front


def test_a_shared_store_saves_what_another_machine_has_run() -> None:
    plan = replace(PLAN, machines=6, seconds=15.0, trace=replace(TRACE, rate=0.5, prefixes=2))
    alone, shared = run(plan), run(replace(plan, stored_states=1000))
    assert shared.prefix_runs < alone.prefix_runs
    assert shared.cached_tokens / shared.prompt_tokens > alone.cached_tokens / alone.prompt_tokens
    assert shared.moved_bytes > 0
    assert shared.moved_bytes % plan.hardware.state_bytes == 0


def test_what_a_death_cuts_off_is_asked_for_again() -> None:
    counts = run(replace(PLAN, deaths=1800.0))
    assert counts.failures > 0
    assert counts.answers > 10


def test_the_least_busy_machine_is_chosen() -> None:
    assert simulate(PLAN, to_the_least_busy).answers > 10


def test_a_prompt_goes_where_its_beginning_is_kept_unless_too_many_wait_there() -> None:
    plan = replace(PLAN, machines=4, seconds=15.0)
    routed = simulate(plan, knowing_all(plan.hardware, plan.trace))
    assert routed.prefix_runs < run(plan).prefix_runs
    few = replace(plan.hardware, slots=1)
    crowded = replace(plan, hardware=few, trace=replace(TRACE, prefixes=1, rate=2.0))
    routed, balanced = (simulate(crowded, route) for route in (knowing_all(few, TRACE), to_the_least_busy))
    assert routed.answers > 0.9 * balanced.answers


def test_the_fleets_router_is_nearly_as_good_as_one_that_knows_all() -> None:
    plan = replace(PLAN, machines=4, seconds=15.0)
    fleet, best = (simulate(plan, route) for route in (FleetRoute(plan.hardware), knowing_all(plan.hardware, TRACE)))
    assert fleet.answers == pytest.approx(best.answers, rel=0.1)
    assert fleet.cached_tokens / fleet.prompt_tokens == pytest.approx(best.cached_tokens / best.prompt_tokens, abs=0.1)
