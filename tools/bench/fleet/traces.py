"""The same conversations on a fleet and in the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import quantiles
from typing import Any, NamedTuple

import click

from tools.bench.fleet.asking import Answered, Question
from tools.bench.fleet.fleets import ask, fleet
from tools.fleet_simulator.fleet import Plan
from tools.fleet_simulator.hardware import Hardware
from tools.fleet_simulator.routes import FleetRoute, simulate
from tools.fleet_simulator.trace import ANSWER_TOKEN, Conversation, Trace, conversations, prefix_tokens


class _Outcome(NamedTuple):
    tokens_per_second: float
    saved: float  # share of the tokens of prompts
    first_median: float  # ms
    first_99: float


def compare(replicas: Sequence[int], seconds: float, hardware: Hardware, trace: Trace) -> None:
    """Print what becomes of a trace on fleets and in the simulator, and the simulator's error."""
    plans = [Plan(count, seconds, hardware, trace) for count in replicas]
    for plan, real in zip(plans, asyncio.run(_on_fleets(plans)), strict=True):
        for name, one, other in zip(_Outcome._fields, real, _simulated(plan), strict=True):
            click.echo(
                f"{plan.machines} replicas, {name}: fleet {one:.4g}, simulator {other:.4g}, {other / one - 1:+.1%}"
            )


async def _on_fleets(plans: Sequence[Plan]) -> list[_Outcome]:
    outcomes = []
    for plan in plans:
        async with fleet(plan.hardware, plan.machines) as port:
            outcomes.append(_measured(await ask(port, _chains(plan), plan.seconds), plan.seconds))
    return outcomes


def _chains(plan: Plan) -> list[list[Question]]:
    chains = []
    for conversation in conversations(plan.trace, plan.machines, plan.seconds, plan.seed):
        pauses = (conversation.begins, *conversation.thinks[1:])
        chains.append(list(map(Question, pauses, bodies_of(plan.trace, conversation))))
    return chains


def bodies_of(trace: Trace, conversation: Conversation) -> list[dict[str, Any]]:
    """Return what the turns of a conversation ask: each has all that was said before."""
    said, bodies = list(prefix_tokens(trace, conversation.prefix)), list[dict[str, Any]]()
    for question in conversation.questions:
        said += question
        bodies.append({"prompt": list(said), "max_tokens": trace.answer_tokens, "marks": [trace.prefix_tokens]})
        said += [ANSWER_TOKEN] * trace.answer_tokens
    return bodies


def _measured(answers: Sequence[Answered], seconds: float) -> _Outcome:
    """Count what happened in the trace's time, as the simulator does."""
    begun = [answer for answer in answers if answer.first < seconds]
    return _outcome(
        sum(answer.tokens for answer in answers if answer.ended < seconds) / seconds,
        sum(answer.cached_tokens for answer in begun) / sum(answer.prompt_tokens for answer in begun),
        [answer.first - answer.asked for answer in begun],
    )


def _simulated(plan: Plan) -> _Outcome:
    counts = simulate(plan, FleetRoute(plan.hardware))
    return _outcome(
        counts.answer_tokens / plan.seconds, counts.cached_tokens / counts.prompt_tokens, counts.first_tokens
    )


def _outcome(tokens_per_second: float, saved: float, firsts: Sequence[float]) -> _Outcome:
    steps = quantiles(firsts, n=100, method="inclusive")
    return _Outcome(tokens_per_second, saved, 1e3 * steps[49], 1e3 * steps[98])
