"""The whole fleet under a load: who asks, where it goes, what fails, and what all that comes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from statistics import quantiles
from typing import TypeAlias

from rnn_engine.errors import RnnEngineError, UnavailableError
from rnn_engine.fleet.members import SURVEY_SECONDS
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started
from tools.fleet_simulator.clock import Clock
from tools.fleet_simulator.hardware import Hardware
from tools.fleet_simulator.machine import Machine
from tools.fleet_simulator.store import ModelledClient, ModelledStore
from tools.fleet_simulator.trace import ANSWER_TOKEN, Conversation, Trace, conversations, prefix_tokens

Route: TypeAlias = Callable[[Sequence[int], Sequence[Machine]], int]
"""Takes a prompt and the machines; returns the number of the one that it goes to."""

Survey: TypeAlias = Callable[[Sequence[Machine]], None]
"""Looks at all machines, as a front does twice a second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is simulated."""

    machines: int
    seconds: float
    hardware: Hardware
    trace: Trace
    stored_states: int = 0  # that the shared store has room for; 0 = there is no store
    deaths: float = 0.0  # a machine and hour; another one takes its place at once, with an empty cache
    seed: int = 1


@dataclass(slots=True)
class Counts:
    """What happened."""

    first_tokens: list[float] = field(default_factory=list)  # seconds from the question to the first token
    answers: int = 0
    answer_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    run_tokens: int = 0  # of prompts
    prefix_runs: int = 0  # prompts of which not even the shared text was cached
    failures: int = 0  # answers that a death cut off, which were asked for again
    moved_bytes: int = 0  # to the store and from it
    store_operations: int = 0

    def percentile(self, percent: int) -> float:
        """Return a percentile of the times to the first token."""
        return quantiles(self.first_tokens, n=100, method="inclusive")[percent - 1]


class Fleet:
    """Serves a trace. `run` does it all."""

    def __init__(self, plan: Plan, route: Route, survey: Survey) -> None:
        self._plan = plan
        self._look = survey
        self._names = map(str, count())
        self._route = route
        self._clock = Clock()
        self._counts = Counts()
        self._loop = asyncio.new_event_loop()
        self._store = ModelledStore(plan.stored_states, plan.hardware) if plan.stored_states else None
        self._machines = [self._new_machine() for _ in range(plan.machines)]
        self._random = Random(f"deaths {plan.seed}")

    def run(self) -> Counts:
        """Serve the conversations that begin in the plan's time, and count what happened in it."""
        plan = self._plan
        for conversation in conversations(plan.trace, plan.machines, plan.seconds, plan.seed):
            shared = prefix_tokens(plan.trace, conversation.prefix)
            self._clock.at(conversation.begins, partial(self._ask, conversation, 0, shared))
        if plan.deaths:
            self._plan_death()
        self._survey()
        try:
            self._clock.run(plan.seconds)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        if self._store is not None:
            self._counts.store_operations = self._store.operations
            self._counts.moved_bytes = self._store.link.moved
        return self._counts

    def _new_machine(self) -> Machine:
        hardware = self._plan.hardware
        client = None if self._store is None else ModelledClient(self._store, hardware, self._clock, self._loop)
        return Machine(next(self._names), hardware, self._clock, client)

    def _survey(self) -> None:
        self._look(self._machines)
        self._clock.at(self._clock.now + SURVEY_SECONDS, self._survey)

    def _ask(self, conversation: Conversation, turn: int, history: Sequence[int]) -> None:
        """Ask a conversation's question of this turn after `history`."""
        prompt = [*history, *conversation.questions[turn]]
        trace, asked = self._plan.trace, self._clock.now
        machine = self._machines[self._route(prompt, self._machines)]
        request = GenerateRequest(
            prompt,
            max_tokens=trace.answer_tokens,
            stop_tokens=(),
            sampling=SamplingParams(temperature=0.0),
            checkpoint_positions=(trace.prefix_tokens,),
        )

        def started(event: Started) -> None:
            counts = self._counts
            counts.first_tokens.append(self._clock.now - asked)
            counts.prompt_tokens += event.prompt_tokens
            counts.cached_tokens += event.cached_tokens
            counts.run_tokens += event.prompt_tokens - event.cached_tokens
            counts.prefix_runs += event.cached_tokens < trace.prefix_tokens

        def ended(outcome: Finished | RnnEngineError) -> None:
            if isinstance(outcome, RnnEngineError):
                self._counts.failures += 1
                self._ask(conversation, turn, history)
                return
            self._counts.answers += 1
            self._counts.answer_tokens += outcome.completion_tokens
            if turn + 1 < len(conversation.questions):
                said = [*prompt, *[ANSWER_TOKEN] * trace.answer_tokens]
                self._clock.at(
                    self._clock.now + conversation.thinks[turn + 1], lambda: self._ask(conversation, turn + 1, said)
                )

        machine.ask(request, started, ended)

    def _plan_death(self) -> None:
        rate = self._plan.deaths * self._plan.machines / 3600
        self._clock.at(self._clock.now + self._random.expovariate(rate), self._kill)

    def _kill(self) -> None:
        number = self._random.randrange(len(self._machines))
        dead, self._machines[number] = self._machines[number], self._new_machine()
        dead.die(UnavailableError("the machine has died", 0.0))
        self._plan_death()
