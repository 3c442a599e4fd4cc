"""What is modelled: how long a step takes, and how long a state is on its way over the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from rnn_engine.types import F32, Batch, ModelShape, PendingState, Readout, ReadyState, State, Ticket
from tools.fleet_simulator.trace import ANSWER_TOKEN

_UNLIKELY = -100.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine, the network, and the size of the states that travel."""

    slots: int = 16
    step: float = 0.008  # seconds of a step whatever it runs
    token: float = 0.0001  # seconds that each of its tokens adds
    state_bytes: int = 13_400_000  # 24 layers, width 2048
    cached_states: int = 64  # that a machine's memory keeps
    front: float = 0.01  # seconds of a request's way through HTTP, front and Ray, and of its first token's back
    latency: float = 0.0005  # seconds to the store and back
    bandwidth: float = 25e9 / 8  # bytes a second of each machine's link, and of the store's


class Link:
    """A line over which states go one after the other."""

    def __init__(self, bandwidth: float) -> None:
        self.moved = 0  # bytes
        self._bandwidth = bandwidth
        self._free_at = 0.0

    def carry(self, num_bytes: int, now: float) -> float:
        """Return when so many bytes have arrived that are sent now."""
        self.moved += num_bytes
        self._free_at = max(now, self._free_at) + num_bytes / self._bandwidth
        return self._free_at


class ModelledRunner:
    """A `Runner` whose steps take modelled time, one after the other, and whose sequences all say one token for ever.

    It computes nothing.
    """

    def __init__(
        self, shape: ModelShape, hardware: Hardware, now: Callable[[], float], wait_until: Callable[[float], None]
    ) -> None:
        """`now` tells the time in seconds, and `wait_until` returns when it is that late."""
        self.shape = shape
        self.num_slots = hardware.slots
        self.max_tokens = self.max_rows = max(256, hardware.slots)
        self.max_draws = self.max_draw_logprobs = self.num_penalty_slots = 0
        self._hardware = hardware
        self._now = now
        self._wait_until = wait_until
        self._free_at = 0.0
        self._tickets = map(Ticket, count())
        self._in_flight: dict[Ticket, tuple[float, Readout]] = {}  # with when it is done
        self._state = shape.initial_state()
        self._row = np.full(shape.vocab_size, _UNLIKELY, np.float32)
        self._row[ANSWER_TOKEN] = 0.0

    def submit(self, batch: Batch) -> Ticket:
        tokens = sum(len(run.tokens) for run in batch)
        self._free_at = max(self._now(), self._free_at) + self._hardware.step + self._hardware.token * tokens
        rows = sum(run.rows for run in batch)
        ticket = next(self._tickets)
        readout = Readout(
            ids=np.full((rows, 1), ANSWER_TOKEN, np.int32),
            logits=np.zeros((rows, 1), np.float32),
            logsumexp=np.zeros(rows, np.float32),
            allowed_logsumexp=np.zeros(rows, np.float32),
            target_logits=np.full(rows, np.nan, np.float32),
            sound=np.ones(len(batch), np.bool_),
            full_row=lambda _: self._row,
        )
        self._in_flight[ticket] = self._free_at, readout
        return ticket

    def collect(self, ticket: Ticket) -> Readout:
        done, readout = self._in_flight.pop(ticket)
        self._wait_until(done)
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
