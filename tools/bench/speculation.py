"""`python -m tools.bench.speculation`: what drafts gain for answers that repeat their prompt, and lose for others.

Steps are run by a random model on a device, or take modelled times on a clock of their own; what they say is written
beforehand: the greatest logit of each row is set to the next token of a known answer. Requests with drafts and without
take turns on the same runner.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import click
import numpy as np

from rnn_engine.loading.runner import load_runner
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams
from rnn_engine.scheduler import NO_DRAFTS, DraftSettings, Scheduler
from rnn_engine.tokenizer.world import WorldTokenizer
from rnn_engine.types import F32, Batch, ModelShape, Readout, Runner, Ticket, TokenRun
from rnn_engine.versions.v7.shape import AdapterRanks
from tools.bench.random_model import SHAPES, RandomModel, shape_of

_ROOT = Path(__file__).resolve().parents[2]
_SHAPES = {"small": shape_of(4, 512, AdapterRanks(w=32, a=32, v=32, g=64)), **SHAPES}
_PROMPT = 4000  # characters
_MARGIN = np.float32(30.0)  # of the token that is said over the others


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and what is said after it."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def make_cases(num_tokens: int) -> list[Case]:
    """Return answers of at most so many tokens: code with other names, sentences of the prompt, and other prose."""
    encode = WorldTokenizer().encode
    code = (_ROOT / "rnn_engine" / "scheduler" / "queue.py").read_text()[:_PROMPT]
    edited = re.sub(r"\bwaiting\b", "pending", code).replace("self._queue", "self._lines")
    prose = (_ROOT / "docs" / "architecture.md").read_text()
    page = prose[:_PROMPT]
    sentences = re.split(r"(?<=\.) ", page)
    cases = {
        "code, edited": (code, edited),
        "sentences of the prompt": (page, " Further: ".join(sentences[::3])),
        "other prose": (page, prose[_PROMPT:]),
    }
    return [
        Case(name, tuple(encode(f"{prompt}\n\n")), tuple(encode(answer)[:num_tokens]))
        for name, (prompt, answer) in cases.items()
    ]


class Modelled:
    """A runner without a model: its steps take `base` seconds, and `each` for each token."""

    def __init__(self, shape: ModelShape, num_slots: int, base: float, each: float) -> None:
        self.shape = shape
        self.num_slots = num_slots
        self.max_tokens, self.max_rows = 256, 64
        self.max_draws = self.max_draw_logprobs = self.num_penalty_slots = 0
        self._now = 0.0
        self._base, self._each = base, each
        self._tickets = map(Ticket, count())
        self._last: Batch = ()

    def seconds(self) -> float:
        """The clock of these steps."""
        return self._now

    def submit(self, batch: Batch) -> Ticket:
        self._last = batch
        self._now += self._base + self._each * sum(len(run.tokens) for run in batch)
        return next(self._tickets)

    def collect(self, _ticket: Ticket) -> Readout:
        num_rows = sum(run.rows for run in self._last)
        logits, none = np.zeros((num_rows, 8), np.float32), np.zeros(num_rows, np.float32)
        ids = np.tile(np.arange(1, 9, dtype=np.int32), (num_rows, 1))
        return Readout(ids, logits, none, none, none, np.ones(len(self._last), np.bool_), lambda _: logits[0])

    def write_state(self, _slot: int, _state: object) -> None:
        pass

    def copy_state(self, _source: int, _target: int) -> None:
        pass

    def read_state(self, _slot: int) -> dict[str, F32]:
        return self.shape.initial_state()


class Reciting:
    """Passes everything on to a runner, and has each sequence say what is written for it behind its prompt."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.text: Sequence[int] = ()  # prompt and answer of all sequences
        self.max_draws = 0
        self._places = [0] * inner.num_slots  # tokens that each slot has taken in
        self._said: dict[Ticket, list[int]] = {}  # of each row

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def submit(self, batch: Batch) -> Ticket:
        ticket = self.inner.submit(batch)
        self._said[ticket] = [token for run in batch for token in self._say(run)]
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        readout = self.inner.collect(ticket)
        said = self._said.pop(ticket)
        if not said:
            return readout
        ids, logits = readout.ids.copy(), readout.logits.copy()
        ids[:, 0] = said
        logits[:, 0] += _MARGIN
        return replace(readout, ids=ids, logits=logits, logsumexp=logits[:, 0], allowed_logsumexp=logits[:, 0])

    def write_state(self, slot: int, state: None) -> None:
        self._places[slot] = 0
        self.inner.write_state(slot, state)

    def copy_state(self, source: int, target: int) -> None:
        self._places[target] = self._places[source]
        self.inner.copy_state(source, target)

    def _say(self, run: TokenRun) -> Iterator[int]:
        end = self._places[run.slot] = self._places[run.slot] + len(run.tokens)
        for place in range(end - run.rows, end):
            yield self.text[place + 1] if place + 1 < len(self.text) else 1


@dataclass(frozen=True, slots=True)
class Turn:
    """How quickly requests were answered, after their first token."""

    per_second: float  # tokens
    drafted: int
    accepted: int


class Side:
    """A scheduler with drafts or without, which keeps what it learns from turn to turn."""

    def __init__(self, runner: Reciting, slots: int, drafts: DraftSettings, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._slots = slots
        self._clock = clock
        self._scheduler = Scheduler(runner, lambda _: b"x", None, slots, clock=clock, drafts=drafts)  # type: ignore[arg-type]
        self._keys = count()

    def answer(self, case: Case) -> Turn:
        """Run as many requests as there are slots, from the moment that all have their first token."""
        scheduler, sampling = self._scheduler, SamplingParams(temperature=0.0)
        self._runner.text = (*case.prompt, *case.answer)
        counters = scheduler.counters
        first = counters.first_token_seconds.count + self._slots
        for _ in range(self._slots):
            request = GenerateRequest(case.prompt, max_tokens=len(case.answer), stop_tokens=(), sampling=sampling)
            scheduler.submit(next(self._keys), request)
        ended = 0
        while counters.first_token_seconds.count < first:
            ended += self._step()
        before, drafted = counters.generated_tokens, (counters.draft_tokens, counters.accepted_tokens)
        begun = self._clock()
        while scheduler.has_work:
            ended += self._step()
        seconds = self._clock() - begun
        assert ended == self._slots
        return Turn(
            (counters.generated_tokens - before) / seconds,
            counters.draft_tokens - drafted[0],
            counters.accepted_tokens - drafted[1],
        )

    def _step(self) -> int:
        """Run a step; return how many requests it ends."""
        outcomes = [delivery.outcome for delivery in self._scheduler.step()]
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return sum(isinstance(outcome, Finished) for outcome in outcomes)


@click.command()
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
@click.option("--shape", type=click.Choice(list(_SHAPES)), default="small", show_default=True)
@click.option("--modelled", metavar="BASE,EACH", help="Milliseconds of a step and of each of its tokens; no device.")
@click.option("--slots", default="1,4", show_default=True)
@click.option("--tokens", default=256, show_default=True, help="Of an answer, at most.")
@click.option("--speculate", default="8", show_default=True, help="Tokens of a draft at most; several are compared.")
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
    device: str, shape: str, modelled: str | None, slots: str, tokens: int, speculate: str, rounds: int, clock_name: str
) -> None:
    """Print tokens a second of each side and their ratio, the median, the least and the greatest of the rounds."""
    counts, drafts = [int(each) for each in slots.split(",")], [int(each) for each in speculate.split(",")]
    cases, clocks = make_cases(tokens), {"wall": time.perf_counter, "processor": time.process_time}
    click.echo("| answer | slots | tokens of a draft | tok/s without | with | ratio | accepted of drafted |")
    click.echo("|---|---|---|---|---|---|---|")
    for num_slots in counts:
        with ExitStack() as stack:
            if modelled is None:
                model = RandomModel(_SHAPES[shape])
                inner = load_runner(model, device, num_slots=2 * num_slots, max_tokens=256, warm_up=True)
                runner, clock = Reciting(stack.enter_context(closing(inner))), clocks[clock_name]
            else:
                base, each = (float(part) / 1e3 for part in modelled.split(","))
                steps = Modelled(_SHAPES[shape], 2 * num_slots, base, each)
                runner, clock = Reciting(steps), steps.seconds  # type: ignore[arg-type]
            spare = range(num_slots, 2 * num_slots)
            sides = [Side(runner, num_slots, NO_DRAFTS, clock)]
            sides += [Side(runner, num_slots, DraftSettings(most, spare), clock) for most in drafts]
            for case in cases:
                turns = [[side.answer(case) for side in sides] for _ in range(rounds)]
                for place, most in enumerate(drafts, 1):
                    click.echo(_row(case, num_slots, most, [(turn[0], turn[place]) for turn in turns]))


def _row(case: Case, slots: int, most: int, turns: Sequence[tuple[Turn, Turn]]) -> str:
    without, drafted = (statistics.median(turn[side].per_second for turn in turns) for side in (0, 1))
    ratios = [turn.per_second / plain.per_second for plain, turn in turns]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    tokens = f"{sum(turn.accepted for _, turn in turns)} of {sum(turn.drafted for _, turn in turns)}"
    return f"| {case.name} | {slots} | {most} | {without:.1f} | {drafted:.1f} | {ratio} | {tokens} |"


if __name__ == "__main__":
    main()
