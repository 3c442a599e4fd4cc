"""`python -m tools.bench.speculation`: what drafts gain for answers that come again or repeat, and cost for others.

Steps are run by a random model on a device, or take modelled times, to which the host's own are added; what they say is
written beforehand: the greatest logit of each row is set to the next token of a known answer. Requests with drafts and
without take turns on the same runner.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count

import click

from rnn_engine.loading.parts import MOST_DRAFTING
from rnn_engine.loading.runner import load_runner
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams
from rnn_engine.scheduler import NO_DRAFTS, DraftSettings, Scheduler
from rnn_engine.versions.v7.layout import AdapterRanks
from states.cache.config import CacheConfig
from states.cache.upkeep import make_cache
from tools.bench.host.device_clock import DeviceClock
from tools.bench.random_model import SHAPES, RandomModel, shape_of
from tools.bench.speculation.cases import WORLD, Case, make_cases
from tools.bench.speculation.runners import Modelled, Reciting

_SHAPES = {"small": shape_of(4, 512, AdapterRanks(w=32, a=32, v=32, g=64)), **SHAPES}
_SAMPLERS = {"greedy": SamplingParams(temperature=0.0), "nucleus": SamplingParams(temperature=1.0, top_p=0.9, seed=1)}
_KEPT = 4  # states of each slot


@dataclass(frozen=True, slots=True)
class Turn:
    """How quickly requests were answered, after their first token."""

    per_second: float  # tokens
    prompts_per_second: float  # tokens of the prompts beside them
    drafted: int
    accepted: int


class Side:
    """A scheduler with drafts or without, which keeps what it learns from turn to turn."""

    def __init__(
        self,
        runner: Reciting,
        slots: int,
        drafts: DraftSettings,
        clock: Callable[[], float],
        sampling: SamplingParams,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._runner = runner
        self._slots = slots
        self._clock = clock
        self._sampling = sampling
        self._token_bytes = token_bytes
        capacity = _KEPT * slots * (runner.shape.state_bytes + 4 * runner.shape.vocab_size)
        self._cache = make_cache(runner.shape, "a model", runner, CacheConfig(host_capacity=capacity))
        self._scheduler = Scheduler(runner, token_bytes, self._cache, slots + 1, clock=clock, drafts=drafts)
        self._keys = count()
        self._live: set[int] = set()
        self._beginnings = count(1)  # of the prompts beside, so that none was there before

    def answer(self, case: Case) -> Turn:
        """Run as many requests as there are slots, from the moment that all have their first token."""
        self._cache.drop_all()
        if case.before:
            self._submit(case, case.before, 1)
            while self._live:
                self._step()
        counters = self._scheduler.counters
        first = counters.first_token_seconds.count + self._slots
        asked = self._submit(case, case.answer, self._slots)
        while counters.first_token_seconds.count < first:
            self._step()
        before, drafted = counters.generated_tokens, (counters.draft_tokens, counters.accepted_tokens)
        prompts, beside, begun = counters.prefill_tokens, -1, self._clock()
        while asked & self._live:
            if case.beside and beside not in self._live:
                beside = self._submit_one(GenerateRequest([next(self._beginnings), *case.beside], max_tokens=0))
            self._step()
        seconds = self._clock() - begun
        self._scheduler.cancel(beside)
        self._live.discard(beside)
        return Turn(
            (counters.generated_tokens - before) / seconds,
            (counters.prefill_tokens - prompts) / seconds,
            counters.draft_tokens - drafted[0],
            counters.accepted_tokens - drafted[1],
        )

    def _submit(self, case: Case, answer: Sequence[int], num_requests: int) -> set[int]:
        if case.grammar is None:
            self._runner.recite(case.prompt, answer)
        else:  # forced tokens may divide the text in another way
            self._runner.recite(case.prompt, case.said_by_byte(), lambda token: len(self._token_bytes(token)))
        request = GenerateRequest(
            case.prompt,
            max_tokens=len(answer),
            stop_tokens=(),
            sampling=self._sampling,
            token_mask=None if case.grammar is None else case.grammar.start,
        )
        return {self._submit_one(request) for _ in range(num_requests)}

    def _submit_one(self, request: GenerateRequest) -> int:
        key = next(self._keys)
        self._scheduler.submit(key, request)
        self._live.add(key)
        return key

    def _step(self) -> None:
        for delivery in self._scheduler.step():
            if isinstance(delivery.outcome, Exception):
                raise delivery.outcome
            if isinstance(delivery.outcome, Finished):
                self._live.remove(delivery.key)


@click.command()
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--shape", type=click.Choice(list(_SHAPES)), default="small", show_default=True)
@click.option("--modelled", metavar="BASE,EACH", help="Milliseconds of a step and of each of its tokens; no device.")
@click.option("--draws", default=0, show_default=True, help="Tokens that a modelled device draws at a time.")
@click.option("--slots", default="1,4", show_default=True)
@click.option("--tokens", default=256, show_default=True, help="Of an answer, at most.")
@click.option("--speculate", default="8", show_default=True, help="Tokens of a draft at most; several are compared.")
@click.option("--sampler", type=click.Choice(list(_SAMPLERS)), default="greedy", show_default=True)
@click.option("--cases", "wanted", default="", help="Those whose names have this.")
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--clock",
    "clock_name",
    type=click.Choice(["wall", "processor"]),
    default="wall",
    show_default=True,
    help="processor, for a software device on a machine that does other work too.",
)
def main(
    device: str,
    shape: str,
    modelled: str | None,
    draws: int,
    slots: str,
    tokens: int,
    speculate: str,
    sampler: str,
    wanted: str,
    rounds: int,
    clock_name: str,
) -> None:
    """Print tokens a second of each side and their ratio, the median, the least and the greatest of the rounds.

    `beside` is the ratio for the tokens of prompts that are run beside the answers.
    """
    counts, drafts = [int(each) for each in slots.split(",")], [int(each) for each in speculate.split(",")]
    cases, clocks = make_cases(tokens), {"wall": time.perf_counter, "processor": time.process_time}
    click.echo("| answer | slots | tokens of a draft | tok/s without | with | ratio | accepted of drafted | beside |")
    click.echo("|---|---|---|---|---|---|---|---|")
    for num_slots in counts:
        with ExitStack() as stack:
            if modelled is None:
                model = RandomModel(_SHAPES[shape])
                inner = load_runner(model, device, num_slots=2 * num_slots + 1, max_tokens=256, warm_up=True)
                runner, clock = Reciting(stack.enter_context(closing(inner))), clocks[clock_name]
            else:
                base, each = (float(part) / 1e3 for part in modelled.split(","))
                device_clock = DeviceClock()
                steps = Modelled(_SHAPES[shape], 2 * num_slots + 1, base, each, draws, device_clock)
                runner, clock = Reciting(steps, draws), device_clock.now
            spare = range(num_slots + 1, num_slots + 1 + min(num_slots, MOST_DRAFTING))
            settings = [NO_DRAFTS, *(DraftSettings(most, spare) for most in drafts)]
            sides = [Side(runner, num_slots, one, clock, _SAMPLERS[sampler], WORLD.decode_bytes) for one in settings]
            for case in cases:
                if wanted not in case.name:
                    continue
                turns = [[side.answer(case) for side in sides] for _ in range(rounds)]
                for place, most in enumerate(drafts, 1):
                    click.echo(_row(case, num_slots, most, [(turn[0], turn[place]) for turn in turns]))


def _row(case: Case, slots: int, most: int, turns: Sequence[tuple[Turn, Turn]]) -> str:
    without, drafted = (statistics.median(turn[side].per_second for turn in turns) for side in (0, 1))
    ratios = [turn.per_second / plain.per_second for plain, turn in turns]
    ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
    tokens = f"{sum(turn.accepted for _, turn in turns)} of {sum(turn.drafted for _, turn in turns)}"
    beside = statistics.median(turn.prompts_per_second / max(plain.prompts_per_second, 1.0) for plain, turn in turns)
    prompts = f"{beside:.3f}" if case.beside else ""
    return f"| {case.name} | {slots} | {most} | {without:.1f} | {drafted:.1f} | {ratio} | {tokens} | {prompts} |"


if __name__ == "__main__":
    main()
