"""A runner that computes nothing: every row of its read-outs is prepared beforehand.

The rows look like a language model's: sorted candidates out of a whole vocabulary, with the log-sum-exp of the whole
row. Their probabilities fall with their rank as those of words do. The runner fits the `Runner` protocol of this
commit and the earlier one, in which a step blocked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from rnn_engine.types import F32, I32, Batch, ModelShape, Readout, State
from tools.bench.commits import find
from tools.bench.host.device_clock import DeviceClock, RealClock

if TYPE_CHECKING:  # not all commits have it
    from rnn_engine.types import PendingState

_NUM_CANDIDATES = 128
_NUM_ROWS = 256
_STRIDE = 97  # from one step's first row to the next one's: odd, so that a sequence meets all rows before one returns
_EXPONENT = 1.5  # probability ~ rank to the power of minus this: 0.4 for the first, 0.93 for the first 128 together
_NOISE = 0.5
_NUM_DRAWS = 16


class InstantRunner:
    """A runner that returns prepared rows in turn. Token 0 is never a candidate. Its states are empty."""

    def __init__(
        self,
        shape: ModelShape,
        num_slots: int,
        step_seconds: float = 0.0,
        max_draws: int = 16,
        clock: DeviceClock | RealClock | None = None,
    ) -> None:
        """Without `step_seconds` it answers at once; else it models a device that runs one step after the other.

        Each step takes `step_seconds`, once for each token that it draws. `max_draws` is the most tokens that a step
        draws for one run. `clock` must be the host's clock, too; None = real time.
        """
        self.shape = shape
        self.num_slots = num_slots
        self.max_tokens = self.max_rows = max(256, num_slots)
        self.max_draws = max_draws
        self.num_penalty_slots = num_slots if max_draws else 0
        self.max_draw_logprobs = 20 if max_draws else 0
        self._targets = np.full(self.max_rows, np.nan, np.float32)
        self._sound = np.ones(num_slots, np.bool_)
        self._fields = {field.name for field in fields(Readout)}
        self._state = shape.initial_state()
        self._first = 0
        _prepare(shape.vocab_size, self.max_rows)  # now, since it takes longer than most measurements
        self._tickets: Iterator[Any] | None = None
        self._in_flight: dict[Any, tuple[Readout, float]] = {}  # with the time at which it is done
        self._step_seconds = step_seconds
        self._busy_until = 0.0
        self._clock = clock or RealClock()

    def submit(self, batch: Batch) -> Any:  # noqa: ANN401
        """Return a ticket of this commit's type."""
        if self._tickets is None:
            self._tickets = map(find("Ticket", "rnn_engine.types"), count())
        ticket = next(self._tickets)
        draws = [getattr(run, "draw", None) for run in batch]  # not in all commits
        num_steps = max([draw.count for draw in draws if draw is not None], default=1)
        self._busy_until = max(self._busy_until, self._clock.now()) + num_steps * self._step_seconds
        self._in_flight[ticket] = self.step(batch), self._busy_until
        return ticket

    def collect(self, ticket: Any) -> Readout:  # noqa: ANN401
        readout, done = self._in_flight.pop(ticket)
        if self._step_seconds:
            self._clock.wait_until(done)
        return readout

    def step(self, batch: Batch) -> Readout:
        """Return a step's read-out at once, as the earlier protocol has it."""
        num_rows = sum(run.rows for run in batch)
        first = self._first = (self._first + _STRIDE) % _NUM_ROWS
        rows = _prepare(self.shape.vocab_size, self.max_rows)
        logsumexp = rows.logsumexp[first : first + num_rows]
        newer: dict[str, Any] = {"sound": self._sound[: len(batch)], "allowed_logsumexp": logsumexp}
        if any(getattr(run, "draw", None) for run in batch):  # not in all commits
            newer["drawn"] = self._draw(batch, first)
        return Readout(  # type: ignore[arg-type, call-arg, unused-ignore]
            ids=rows.ids[first : first + num_rows],
            logits=rows.logits[first : first + num_rows],
            logsumexp=logsumexp,
            target_logits=self._targets[:num_rows],
            full_row=partial(self._full_row, first),
            **{name: values for name, values in newer.items() if name in self._fields},
        )

    def _draw(self, batch: Batch, first: int) -> list[Any]:
        """Return tokens for the runs that have a draw."""
        from rnn_engine.types import NOTHING_DRAWN, Drawn

        rows = _prepare(self.shape.vocab_size, self.max_rows)
        settled: dict[str, Any] = {"is_settled": True}
        if hasattr(NOTHING_DRAWN, "goes_on"):
            settled["goes_on"] = True
        drawn = [
            NOTHING_DRAWN if run.draw is None else Drawn(rows.tokens[first + number][: run.draw.count], **settled)
            for number, run in enumerate(batch)
        ]
        for number, (run, one) in enumerate(zip(batch, drawn, strict=True)):
            if (count := getattr(run.draw, "logprobs", None)) is not None:  # not in all commits
                one.logprobs = [_tell(self.shape.vocab_size, self.max_rows, first + number, count)] * len(one.tokens)
        return drawn

    def write_state(self, slot: int, state: State | None) -> None:
        pass

    def start_read(self, slot: int) -> PendingState:  # noqa: ARG002
        pending: PendingState = find("ReadyState", "rnn_engine.types")(self._state)
        return pending

    def read_state(self, slot: int) -> dict[str, F32]:  # noqa: ARG002
        return self._state

    def copy_state(self, source: int, target: int) -> None:
        pass

    def close(self) -> None:
        pass

    def _full_row(self, first: int, row: int) -> F32:
        full: F32 = _prepare(self.shape.vocab_size, self.max_rows).full[(first + row) % _NUM_ROWS]
        return full


@dataclass(frozen=True, slots=True)
class _Rows:
    """Prepared rows. The candidates are repeated, so that a step may read `max_rows` rows from any first row on."""

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
def _tell(vocab_size: int, max_rows: int, row: int, count: int) -> Any:  # noqa: ANN401
    """Return the log-probability of a row's likeliest token, with the `count` likeliest as alternatives."""
    from rnn_engine.types import TokenLogprobs

    rows = _prepare(vocab_size, max_rows)
    logsumexp = rows.logsumexp.item(row)
    ids, logits = rows.ids[row, :count].tolist(), rows.logits[row].tolist()
    top = tuple((token, logit - logsumexp) for token, logit in zip(ids, logits[:count], strict=True))
    return TokenLogprobs(logits[0] - logsumexp, top)
