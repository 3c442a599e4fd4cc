"""A runner without a model: the test chooses a function that gives the logits for a sequence's tokens so far.

It keeps a slot's tokens as its state, and refuses every batch that breaks the `Runner` contract. Tests can make it
fail. As with a real runner, a read-out's whole rows can be read only until the next but one step. With `max_draws` it
draws as a device does, and leaves some rows to the host.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from rnn_engine.errors import StepError
from rnn_engine.forward.contract import allowed_tokens, make_masks
from rnn_engine.forward.cpu import read_out
from rnn_engine.types import (
    F32,
    NO_LORAS,
    NOTHING_DRAWN,
    Batch,
    Drawn,
    LoraPairs,
    LoraRoom,
    ModelShape,
    PendingState,
    Readout,
    ReadyState,
    State,
    Ticket,
    TokenDraw,
    TokenLogprobs,
    TokenRun,
)
from tests.support.fake_draws import SlotDraws, tell
from tests.support.models import tiny_shape

Tokens: TypeAlias = tuple[int, ...]
Logits: TypeAlias = Callable[[Tokens], F32]  # the tokens so far -> [V]

NEVER_STEPPED = 0  # the number of a state that holds no token
UNDECIDED = 7  # the device leaves one of this many rows to the host


def random_logits(vocab_size: int, spread: float = 3.0) -> Logits:
    """Return a function to rows that look random and depend on every token so far and on their order."""

    def logits(tokens: Tokens) -> F32:
        generator = np.random.default_rng([token + 1 for token in tokens])
        return generator.normal(0.0, spread, vocab_size).astype(np.float32)

    return logits


def table_logits(vocab_size: int, num_rows: int = 4096, spread: float = 3.0) -> Logits:
    """Return a quicker function of the same kind: each sequence has one of `num_rows` rows."""
    table = np.random.default_rng(0).normal(0.0, spread, (num_rows, vocab_size)).astype(np.float32)

    def logits(tokens: Tokens) -> F32:
        row: F32 = table[zlib.crc32(bytes(token & 255 for token in tokens)) % num_rows]
        return row

    return logits


def marked(tokens: Sequence[int], lora: LoraPairs | None) -> Tokens:
    """Return the tokens that stand for `tokens` in the state of a sequence with a LoRA."""
    mark = 0 if lora is None else 1 + zlib.crc32(lora.digest.encode()) % 1000
    return tuple(token + mark for token in tokens)


def scripted_logits(vocab_size: int, script: Sequence[int], margin: float = 100.0) -> Logits:
    """Return a function to rows by which greedy sampling draws `script`, then token 0, again and again.

    The prompt may be any. The place in the script is the longest beginning of it that ends the tokens so far.
    """

    def logits(tokens: Tokens) -> F32:
        place = next(n for n in range(len(script), -1, -1) if tokens[len(tokens) - n :] == tuple(script[:n]))
        row = np.zeros(vocab_size, np.float32)
        row[script[place] if place < len(script) else 0] = margin
        return row

    return logits


@dataclass
class FakeRunner:
    """A runner whose logits are a function of the tokens.

    `fail_when` makes a step raise StepError, `on_step` is called with every batch, and `batches` lists those that ran.
    A runner that gets the `known_states` of another one knows the other's states."""

    logits: Logits
    shape: ModelShape = field(default_factory=lambda: tiny_shape(vocab=257))
    num_slots: int = 4
    max_tokens: int = 32
    max_rows: int = 16
    max_draws: int = 0
    max_draw_logprobs: int = 3
    num_penalty_slots: int = 0
    steps_at_once: int = 1
    lora_room: LoraRoom = NO_LORAS
    num_candidates: int = 8
    fail_when: Callable[[Batch], bool] = lambda batch: False
    on_step: Callable[[Batch], None] = lambda batch: None
    batches: list[list[TokenRun]] = field(default_factory=list)
    rows_read: int = 0
    closed: bool = False
    known_states: list[Tokens] = field(default_factory=lambda: [()])  # a state's number -> the tokens that it holds

    def __post_init__(self) -> None:
        self.slots: list[Tokens | None] = [None] * self.num_slots  # None = undefined
        self._numbers = {tokens: number for number, tokens in enumerate(self.known_states)}
        self.loras: dict[int, LoraPairs] = {}  # by place
        self._steps = 0
        self._tickets = itertools.count()
        self._in_flight: dict[Ticket, Readout | StepError] = {}
        self._undefined: set[int] = set()  # slots of a step that failed, until a state is written to them
        self._draws = [SlotDraws() for _ in range(self.num_slots)]
        self._drawn_last: dict[int, int | None] = {}  # by slot, if its last run has a draw; None = it has halted

    def submit(self, batch: Batch) -> Ticket:
        self._check(batch)
        assert len(self._in_flight) < 2, "a third step in flight"
        ticket = Ticket(next(self._tickets))
        try:
            self._in_flight[ticket] = self._step(batch)
        except StepError as error:
            self._in_flight[ticket] = error
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        assert ticket == next(iter(self._in_flight), None), "a step is collected twice or out of turn"
        outcome = self._in_flight.pop(ticket)
        if isinstance(outcome, StepError):
            raise outcome
        return outcome

    @property
    def num_in_flight(self) -> int:
        """The number of steps that have been submitted and not collected."""
        return len(self._in_flight)

    @property
    def failures_in_flight(self) -> int:
        """The number of failed steps that have not been collected."""
        return sum(isinstance(outcome, StepError) for outcome in self._in_flight.values())

    def _step(self, batch: Batch) -> Readout:
        self.batches.append(list(batch))
        self._steps += 1
        self.on_step(batch)
        if self.fail_when(batch):
            self._undefined.update(run.slot for run in batch if not self._has_halted(run))
            raise StepError("told to fail")
        ran = [(self._run(run), NOTHING_DRAWN) if run.draw is None else self._draw(run, run.draw) for run in batch]
        readout = self._read_out(batch, [row for rows, _ in ran for row in rows])
        return replace(readout, drawn=[drawn for _, drawn in ran]) if any(run.draw for run in batch) else readout

    def write_lora(self, place: int, lora: LoraPairs) -> None:
        assert 0 <= place < self.lora_room.places, f"no such place: {place}"
        self.loras[place] = lora

    def write_state(self, slot: int, state: State | None) -> None:
        self._undefined.discard(slot)
        self._drawn_last.pop(slot, None)
        self.slots[slot] = self.known_states[NEVER_STEPPED] if state is None else self.tokens_of(state)

    def start_read(self, slot: int) -> PendingState:
        return ReadyState(self.read_state(slot))

    def read_state(self, slot: int) -> dict[str, F32]:
        return self.make_state(self._tokens(slot))

    def make_state(self, tokens: Tokens) -> dict[str, F32]:
        """Return the state that holds `tokens`."""
        state = self.shape.initial_state()
        if tokens not in self._numbers:
            self._numbers[tokens] = len(self.known_states)
            self.known_states.append(tokens)
        state["att_shift"][0, 0] = self._numbers[tokens]
        return state

    def tokens_of(self, state: State) -> Tokens:
        """Return the tokens that a state of this runner holds."""
        return self.known_states[int(state["att_shift"][0, 0])]

    def copy_state(self, source: int, target: int) -> None:
        self._undefined.discard(target)
        self._drawn_last.pop(target, None)
        self.slots[target] = self._tokens(source)

    together = nullcontext

    def close(self) -> None:
        self.closed = True

    def _tokens(self, slot: int) -> Tokens:
        tokens = self.slots[slot]
        assert tokens is not None, f"slot {slot} is used before a state was written to it"
        assert slot not in self._undefined, f"the state of slot {slot} is used, which a step that failed has left"
        return tokens

    def _run(self, run: TokenRun) -> list[F32]:
        if run.slot in self._undefined:  # its step was submitted before the one that failed was collected
            return [np.full(self.shape.vocab_size, np.nan, np.float32)] * run.rows
        self._drawn_last.pop(run.slot, None)
        before = self._tokens(run.slot)
        after = self.slots[run.slot] = before + marked(run.tokens, None if run.lora is None else self.loras[run.lora])
        return [self.logits(after[: len(after) - left]) for left in reversed(range(run.rows))]

    def _has_halted(self, run: TokenRun) -> bool:
        return run.follows and run.slot not in self._undefined and self._drawn_last[run.slot] is None

    def _draw(self, run: TokenRun, draw: TokenDraw) -> tuple[list[F32], Drawn]:
        """Return the rows of a run, and the tokens drawn after it."""
        if self._has_halted(run):
            return [self.logits(self._tokens(run.slot))], Drawn((), is_settled=True)
        if run.follows and (token := self._drawn_last.get(run.slot)) is not None:
            run = replace(run, tokens=(token,))
        rows = self._run(run)
        draws = self._draws[run.slot]
        draws.begin(draw, run.tokens)
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        self._drawn_last[run.slot] = None
        while not np.isnan(rows[-1]).any() and zlib.crc32(rows[-1].tobytes()) % UNDECIDED:
            tokens.append(draws.draw(draw, draw.index + len(tokens), rows[-1]))
            if draw.logprobs is not None:
                logprobs.append(tell(rows[-1], tokens[-1], draw.logprobs))
            has_halted = draw.halts is not None and bool(draw.halts[tokens[-1] // 32] >> (tokens[-1] % 32) & 1)
            if has_halted or len(tokens) == draw.count:
                self._drawn_last[run.slot] = None if has_halted else tokens[-1]
                return rows, Drawn(tokens, is_settled=True, goes_on=not has_halted, logprobs=logprobs)
            rows = [*rows[:-1], *self._run(TokenRun(run.slot, tokens[-1:], rows=1, lora=run.lora))]
            self._drawn_last[run.slot] = None
        return rows, Drawn(tokens, is_settled=False, logprobs=logprobs)

    def _read_out(self, batch: Batch, rows: list[F32]) -> Readout:
        step = self._steps

        def full_row(row: int) -> F32:
            assert step >= self._steps - 1, "a row is read after the next but one step was submitted"
            self.rows_read += 1
            return rows[row].copy()

        table = np.array(rows, np.float32).reshape(len(rows), self.shape.vocab_size)
        masks = make_masks(batch, self.shape.vocab_size)
        assert allowed_tokens(batch, masks, self.shape.vocab_size).any(axis=1).all(), "a mask that allows no token"
        return read_out(batch, masks, table, min(self.num_candidates, self.shape.vocab_size), full_row)

    def _check(self, batch: Batch) -> None:
        slots = [run.slot for run in batch]
        assert not self.closed, "a closed runner is used"
        assert batch, "an empty batch"
        assert len(set(slots)) == len(slots), f"two runs of one slot: {slots}"
        assert all(0 <= slot < self.num_slots for slot in slots), f"no such slot: {slots}"
        assert sum(len(run.tokens) for run in batch) <= self.max_tokens, "more tokens than a step takes"
        assert sum(run.rows for run in batch) <= self.max_rows, "more rows than a step computes"
        for run in batch:
            assert 0 <= run.rows <= len(run.tokens) > 0, f"a run without sense: {run}"
            assert all(0 <= token < self.shape.vocab_size for token in run.tokens), f"no such token: {run}"
            assert run.targets is None or len(run.targets) == run.rows, f"not a target a row: {run}"
            if run.draw is not None:
                assert run.rows > 0, f"no row to draw from: {run}"
                assert run.masks is None, f"a draw with a mask: {run}"
                assert 0 < run.draw.count <= self.max_draws, f"not so many draws: {run}"
                assert (run.draw.logprobs or 0) <= self.max_draw_logprobs, f"not so many log-probabilities: {run}"
                assert run.draw.penalties is None or run.slot < self.num_penalty_slots, f"no penalties there: {run}"
            assert not run.follows or self.steps_at_once == 1, f"another device has the token: {run}"
            assert not run.follows or run.slot in self._drawn_last or run.slot in self._undefined, (
                f"follows none: {run}"
            )
        if any(run.draw is not None and run.draw.count > 1 for run in batch):
            assert all(run.draw is not None and len(run.tokens) == 1 for run in batch), "several draws beside others"
