"""Runners that say what is written for them: over a device with a random model, or over modelled steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from rnn_engine.types import (
    F32,
    NOTHING_DRAWN,
    Batch,
    Drawn,
    ModelShape,
    PendingState,
    Readout,
    ReadyState,
    Runner,
    State,
    Ticket,
    TokenRun,
)
from tools.bench.host.device_clock import DeviceClock

_CANDIDATES = 128
_MARGIN = np.float32(30.0)  # of the token that is said over the others
_MAX_TOKENS = 256  # of a step


class Modelled:
    """A runner without a model: its steps take `base` seconds, and `each` for each token, while the host goes on."""

    def __init__(
        self, shape: ModelShape, num_slots: int, base: float, each: float, max_draws: int, clock: DeviceClock
    ) -> None:
        """A device that draws up to `max_draws` tokens takes a step for each of them."""
        self.shape = shape
        self.num_slots = num_slots
        self.max_tokens, self.max_rows, self.max_draws = _MAX_TOKENS, 64, max_draws
        self.max_draw_logprobs = self.num_penalty_slots = 0
        self._base, self._each = base, each
        self._clock = clock
        self._busy_until = 0.0
        self._tickets = map(Ticket, count())
        self._in_flight: dict[Ticket, tuple[Readout, float]] = {}  # with when it is done
        self._state = shape.initial_state()
        self._ids = np.tile(np.arange(1, _CANDIDATES + 1, dtype=np.int32), (self.max_rows, 1))
        self._logits = np.zeros((self.max_rows, _CANDIDATES), np.float32)

    def submit(self, batch: Batch) -> Ticket:
        seconds = self._base + self._each * sum(len(run.tokens) for run in batch)
        num_more = max([run.draw.count for run in batch if run.draw is not None], default=1) - 1
        seconds += num_more * (self._base + self._each * len(batch))
        self._busy_until = max(self._busy_until, self._clock.now()) + seconds
        for run in batch:
            if run.masks is not None:
                run.masks()
        num_rows, ticket = sum(run.rows for run in batch), next(self._tickets)
        none, sound = self._logits[:num_rows, 0], np.ones(len(batch), np.bool_)
        readout = Readout(self._ids[:num_rows], self._logits[:num_rows], none, none, none, sound, self._whole_row)
        self._in_flight[ticket] = readout, self._busy_until
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        readout, done = self._in_flight.pop(ticket)
        self._clock.wait_until(done)
        return readout

    def write_state(self, _slot: int, _state: object) -> None:
        pass

    def copy_state(self, _source: int, _target: int) -> None:
        pass

    def read_state(self, _slot: int) -> dict[str, F32]:
        return self._state

    def start_read(self, _slot: int) -> PendingState:
        return ReadyState(self._state)

    def close(self) -> None:
        pass

    def _whole_row(self, _row: int) -> F32:
        return np.zeros(self.shape.vocab_size, np.float32)


class Reciting:
    """Passes everything on to a runner, and has each sequence say what is written for it behind its prompt."""

    def __init__(self, inner: Runner, max_draws: int = 0) -> None:
        """`inner` draws nothing by itself; with `max_draws` this does."""
        self.inner = inner
        self.max_draws = max_draws
        self._said: Sequence[int] = ()  # by the place behind the prompt
        self._size_of: Callable[[int], int] = _one
        self._prompt_size = 0
        self._places = [0] * inner.num_slots  # behind what each slot has taken in
        self._rows: dict[Ticket, list[int]] = {}  # the token of each
        self._drawn: dict[Ticket, list[Drawn]] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the runner has it
        return getattr(self.inner, name)

    def recite(self, prompt: Sequence[int], said: Sequence[int], size_of: Callable[[int], int] | None = None) -> None:
        """Say `said` behind `prompt` from now on: at each place, which counts tokens or what `size_of` says of them."""
        self._size_of = size_of or _one
        self._prompt_size = sum(map(self._size_of, prompt))
        self._said = said

    def submit(self, batch: Batch) -> Ticket:
        ticket = self.inner.submit(batch)
        rows: list[int] = []
        drawn: list[Drawn] = []
        self._rows[ticket], self._drawn[ticket] = rows, drawn
        for run in batch:
            if run.draw is None:
                rows += self._say(run)
                drawn.append(NOTHING_DRAWN)
            else:
                first = self._places[run.slot] + len(run.tokens) - self._prompt_size
                tokens = list(self._said[first : first + run.draw.count])
                self._places[run.slot] += len(run.tokens) + len(tokens) - 1
                rows += tokens[-1:]
                drawn.append(Drawn(tokens, is_settled=True, goes_on=True))
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        readout = self.inner.collect(ticket)
        said, drawn = self._rows.pop(ticket), self._drawn.pop(ticket)
        if not said:
            return readout
        if self.max_draws:
            readout = replace(readout, drawn=drawn)
        ids, logits = readout.ids.copy(), readout.logits.copy()
        ids[:, 0] = said
        logits[:, 0] += _MARGIN

        def whole_row(row: int) -> F32:
            whole = readout.full_row(row).copy()
            whole[said[row]] = whole.max() + _MARGIN
            return whole

        return replace(
            readout,
            ids=ids,
            logits=logits,
            logsumexp=logits[:, 0],
            allowed_logsumexp=logits[:, 0],
            full_row=whole_row,
        )

    def write_state(self, slot: int, state: State | None) -> None:
        self._places[slot] = 0 if state is None else self._prompt_size
        self.inner.write_state(slot, state)

    def copy_state(self, source: int, target: int) -> None:
        self._places[target] = self._places[source]
        self.inner.copy_state(source, target)

    def _say(self, run: TokenRun) -> Iterator[int]:
        first_row = len(run.tokens) - run.rows
        for number, token in enumerate(run.tokens):
            self._places[run.slot] += self._size_of(token)
            if number >= first_row:
                place = self._places[run.slot] - self._prompt_size
                yield self._said[place] if 0 <= place < len(self._said) else 1


def _one(_token: int) -> int:
    return 1
