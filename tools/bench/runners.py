"""Runners without a model, for benchmarks.

Their steps take no time or a modelled time, and their logits are prepared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Protocol

import numpy as np

from rnn_engine.tokenizer import Tokenizer
from rnn_engine.types import (
    F32,
    I32,
    NOTHING_DRAWN,
    Batch,
    Drawn,
    ModelShape,
    PendingState,
    Readout,
    ReadyState,
    State,
    Ticket,
    TokenLogprobs,
    TokenRun,
)
from tools.bench.host.clients import MARK

_NUM_CANDIDATES = 128
_NUM_ROWS = 256
_STRIDE = 97  # from one step's first row to the next one's: odd, so that a sequence meets all rows before one returns
_EXPONENT = 1.5  # probability ~ rank to the power of minus this: 0.4 for the first, 0.93 for the first 128 together
_NOISE = 0.5
_NUM_DRAWS = 16


class Clock(Protocol):
    """The interface of a clock in seconds that can also wait until a moment."""

    def now(self) -> float: ...

    def wait_until(self, moment: float) -> None: ...


class DeviceClock:
    """A clock that adds up the seconds of work of its thread, and the seconds of waiting for a device.

    Time in which other threads had the processor does not count, so a busy machine gives the figures of an idle one.
    For one thread.
    """

    def __init__(self) -> None:
        self._waited = 0.0

    def now(self) -> float:
        return time.thread_time() + self._waited

    def wait_until(self, moment: float) -> None:
        self._waited += max(moment - self.now(), 0.0)


class RealClock:
    """A clock of real time, in seconds."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        if (left := moment - self.now()) > 0.0:
            time.sleep(left)


class WordTokenizer:
    """A tokenizer whose tokens are short words.

    Each word contains `MARK` once, so that tokens can be counted in a text.
    """

    name = "words"

    def __init__(self, size: int) -> None:
        self.size = size
        self.special_tokens: dict[str, int] = {}
        self._words = [b" " + MARK + b"%x" % token for token in range(size)]

    def encode(self, text: str, /) -> list[int]:
        return [1 + len(word) for word in text.split()]

    def decode_bytes(self, token: int, /) -> bytes:
        return self._words[token]


class TimedRunner:
    """A `Runner` whose steps take time and compute nothing. Its states are empty. It runs one step after the other."""

    def __init__(
        self,
        shape: ModelShape,
        num_slots: int,
        step_seconds: float = 0.0,
        token_seconds: float = 0.0,
        max_draws: int = 0,
        clock: Clock | None = None,
    ) -> None:
        """Set the duration of a step: `step_seconds` times its draws, plus `token_seconds` for each of its tokens.

        The draws are those of the run with the most; a step without draws counts as one. `max_draws` is the most tokens
        that a step draws for one run. `clock` must be the host's clock, too; None = real time.
        """
        self.shape = shape
        self.num_slots = num_slots
        self.max_tokens = self.max_rows = max(256, num_slots)
        self.max_draws = max_draws
        self.num_penalty_slots = num_slots if max_draws else 0
        self.max_draw_logprobs = 20 if max_draws else 0
        self._targets = np.full(self.max_rows, np.nan, np.float32)
        self._sound = np.ones(num_slots, np.bool_)
        self._state = shape.initial_state()
        self._tickets = map(Ticket, count())
        self._in_flight: dict[Ticket, tuple[Readout, float]] = {}  # with the time at which it is done
        self._step_seconds, self._token_seconds = step_seconds, token_seconds
        self._busy_until = 0.0
        self._clock = clock or RealClock()

    def read_out(self, batch: Batch) -> Readout:
        """Return what the host reads back after a step, such as candidates and their logits.

        Subclasses implement it.
        """
        raise NotImplementedError

    def submit(self, batch: Batch) -> Ticket:
        ticket = next(self._tickets)
        seconds = self._step_seconds * max([run.draw.count for run in batch if run.draw is not None], default=1)
        if self._token_seconds:
            seconds += self._token_seconds * sum(len(run.tokens) for run in batch)
        self._busy_until = max(self._busy_until, self._clock.now()) + seconds
        self._in_flight[ticket] = self.read_out(batch), self._busy_until
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        readout, done = self._in_flight.pop(ticket)
        if self._step_seconds:
            self._clock.wait_until(done)
        return readout

    def write_state(self, slot: int, state: State | None) -> None:
        """Do nothing: a state holds nothing."""

    def start_read(self, slot: int) -> PendingState:  # noqa: ARG002
        return ReadyState(self._state)

    def read_state(self, slot: int) -> dict[str, F32]:  # noqa: ARG002
        return self._state

    def copy_state(self, source: int, target: int) -> None:
        """Do nothing: a state holds nothing."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class InstantRunner(TimedRunner):
    """A runner whose steps return prepared logits, which do not depend on the input. Token 0 is never a candidate.

    The rows look like a language model's: sorted candidates out of a whole vocabulary, with the log-sum-exp of the
    whole row. Their probabilities fall with their rank as those of words do.
    """

    def __init__(
        self, shape: ModelShape, num_slots: int, step_seconds: float = 0.0, clock: Clock | None = None
    ) -> None:
        super().__init__(shape, num_slots, step_seconds, max_draws=_NUM_DRAWS, clock=clock)
        self._rows = _prepare(shape.vocab_size, self.max_rows)  # now, since it takes longer than most measurements
        self._first = 0

    def read_out(self, batch: Batch) -> Readout:
        num_rows = sum(run.rows for run in batch)
        first = self._first = (self._first + _STRIDE) % _NUM_ROWS
        logsumexp = self._rows.logsumexp[first : first + num_rows]
        return Readout(
            ids=self._rows.ids[first : first + num_rows],
            logits=self._rows.logits[first : first + num_rows],
            logsumexp=logsumexp,
            allowed_logsumexp=logsumexp,
            target_logits=self._targets[:num_rows],
            sound=self._sound[: len(batch)],
            full_row=partial(self._full_row, first),
            drawn=self._draw(batch, first) if any(run.draw for run in batch) else (),
        )

    def _draw(self, batch: Batch, first: int) -> list[Drawn]:
        """Return the drawn tokens for each run of `batch`; none for a run that asks for no draw.

        `first` is the prepared row of the first run.
        """
        drawn = []
        for row, run in enumerate(batch, first):
            if run.draw is None:
                drawn.append(NOTHING_DRAWN)
                continue
            one = Drawn(self._rows.tokens[row][: run.draw.count], is_settled=True, goes_on=True)
            if run.draw.logprobs is not None:
                one.logprobs = [_likeliest(self._rows, row, run.draw.logprobs)] * len(one.tokens)
            drawn.append(one)
        return drawn

    def _full_row(self, first: int, row: int) -> F32:
        full: F32 = self._rows.full[(first + row) % _NUM_ROWS]
        return full


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Prepared rows of logits, with the best K candidates of each.

    Those are repeated at the end, so that a step may read `max_rows` rows from any first row on.
    """

    full: F32  # [_NUM_ROWS, V]
    ids: I32  # [_NUM_ROWS + max_rows, K]
    logits: F32  # [_NUM_ROWS + max_rows, K]
    logsumexp: F32  # [_NUM_ROWS + max_rows]
    tokens: list[list[int]]  # [_NUM_ROWS + max_rows] some of the candidates, which are drawn one after another


@cache
def _prepare(vocab_size: int, max_rows: int) -> _Rows:
    chance = np.random.default_rng(0)
    falling = -_EXPONENT * np.log(np.arange(1, vocab_size + 1))
    full = np.empty((_NUM_ROWS, vocab_size), np.float32)
    ids = np.empty((_NUM_ROWS, _NUM_CANDIDATES), np.int32)
    logsumexp = np.empty(_NUM_ROWS, np.float32)
    for number, row in enumerate(full):
        row[:] = chance.permutation(falling) + chance.normal(0.0, _NOISE, vocab_size)
        row[0] = row.min()  # token 0 ends a text
        greatest = np.flatnonzero(row >= np.partition(row, -_NUM_CANDIDATES)[-_NUM_CANDIDATES])
        ids[number] = greatest[np.argsort(-row[greatest], kind="stable")][:_NUM_CANDIDATES]
        logsumexp[number] = np.logaddexp.reduce(row.astype(np.float64))
    which = np.arange(_NUM_ROWS + max_rows) % _NUM_ROWS
    tokens = chance.permuted(ids[:, :_NUM_DRAWS], axis=1)[which].tolist()
    return _Rows(full, ids[which], np.take_along_axis(full, ids, axis=1)[which], logsumexp[which], tokens)


@cache
def _likeliest(rows: _Rows, row: int, count: int) -> TokenLogprobs:
    """Return the log-probability of row `row`'s likeliest token, with the `count` likeliest as alternatives."""
    logprobs = (rows.logits[row, : max(count, 1)] - rows.logsumexp[row]).tolist()
    return TokenLogprobs(logprobs[0], tuple(zip(rows.ids[row, :count].tolist(), logprobs, strict=False)))


_RECITED = json.loads(Path(__file__).with_name("recited.json").read_text("utf-8"))
DOCUMENT, SCHEMA = json.dumps(_RECITED["document"]), _RECITED["schema"]
"""What is recited, and a schema that it follows."""

_SURE, _OTHER = 10.0, -5.0  # logits


class RecitingRunner(TimedRunner):
    """A runner that generates `DOCUMENT`: the likeliest token is always its next one, and token 0 after its end.

    So answers are the same with a grammar and without. Prompts consist of token 0.
    """

    def __init__(
        self, shape: ModelShape, num_slots: int, tokenizer: Tokenizer, step_seconds: float, clock: Clock | None = None
    ) -> None:
        super().__init__(shape, num_slots, step_seconds, clock=clock)
        self._tokenizer = tokenizer
        self._recited = [0] * num_slots  # bytes
        document = DOCUMENT.encode()
        rest = (document[start:].decode() for start in range(len(document)))
        tokens = (*(tokenizer.encode(text)[0] for text in rest), 0)
        self._ids = np.array([_candidates(token) for token in tokens], np.int32)  # [bytes + 1, K]
        self._logits = np.full((self.max_rows, _NUM_CANDIDATES), _OTHER, np.float32)
        self._logits[:, 0] = _SURE
        self._logsumexp = np.full(self.max_rows, _SURE, np.float32)

    def read_out(self, batch: Batch) -> Readout:
        for run in batch:
            if callable(run.masks):
                run.masks()
        ids = self._ids[[end for run in batch for end in self._ends(run)]]
        return Readout(
            ids=ids,
            logits=self._logits[: len(ids)],
            logsumexp=self._logsumexp[: len(ids)],
            allowed_logsumexp=self._logsumexp[: len(ids)],
            target_logits=self._targets[: len(ids)],
            sound=self._sound[: len(batch)],
            full_row=lambda row: self._full_row(ids[row]),
        )

    def write_state(self, slot: int, state: State | None) -> None:  # noqa: ARG002
        self._recited[slot] = 0

    def _ends(self, run: TokenRun) -> Sequence[int]:
        """Return the sequence's length in bytes after each token of `run` for which logits are wanted."""
        ends = []
        for token in run.tokens:
            self._recited[run.slot] += len(self._tokenizer.decode_bytes(token))
            ends.append(self._recited[run.slot])
        return ends[len(ends) - run.rows :]

    def _full_row(self, ids: I32) -> F32:
        full: F32 = np.full(self.shape.vocab_size, _OTHER, np.float32)
        full[ids] = self._logits[0]
        return full


def _candidates(token: int) -> list[int]:
    others = [other for other in range(1, _NUM_CANDIDATES + 1) if other != token]
    return [token, *others[: _NUM_CANDIDATES - 1]]
