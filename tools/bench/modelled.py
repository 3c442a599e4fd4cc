"""An engine whose steps take a modelled time: what the host does around them is real.

It shows what scheduler, cache, server and fleet cost and save, with any number of slots, on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import assemble
from rnn_engine.tokenizer import Tokenizer
from rnn_engine.types import F32, Batch, ModelShape, PendingState, Readout, ReadyState, State, Ticket
from states.cache.config import CacheConfig
from states.cache.upkeep import make_cache
from tests.support.models import tiny_shape
from tools.bench.host.modes import WordTokenizer

MODEL = "modelled"
VOCAB = 256
ANSWER_TOKEN = 1
"""The token of which every answer consists."""

SHAPE = tiny_shape(layers=1, width=8, head_size=4, ffn=8, vocab=VOCAB)
_COPY_BYTES = SHAPE.state_bytes + 4 * VOCAB
_INDEX_BYTES = 1 << 24
_QUEUE = 1000
_UNLIKELY = -100.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine, as far as it is modelled."""

    slots: int = 16
    step: float = 0.008  # seconds of a step whatever it runs
    token: float = 0.0001  # seconds that each of its tokens adds
    cached_states: int = 64  # that its memory keeps


def make_engine(hardware: Hardware, tokenizer: Tokenizer | None = None) -> Engine:
    """Return an engine of one machine, of words unless a tokenizer is given. Needs an event loop that runs."""
    tokenizer = tokenizer or WordTokenizer(SHAPE.vocab_size)
    runner = ModelledRunner(SHAPE, hardware, time.perf_counter, _sleep_until)
    capacity = hardware.cached_states * _COPY_BYTES
    config = CacheConfig(host_capacity=capacity, device_capacity=0, index_capacity=_INDEX_BYTES)
    cache = make_cache(SHAPE, MODEL, runner, config)
    parts = assemble(runner, tokenizer, model=MODEL, device="none", weights="f32", cache=cache)
    return Engine(parts, max_queued=_QUEUE)


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.perf_counter(), 0.0))


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
