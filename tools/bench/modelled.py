"""Runners and engines without a model. Their steps take a modelled time, and the work of the host around them is real.

They show what scheduler, cache, server and fleet cost and save, with any number of slots, on any machine.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Protocol

import numpy as np

from rnn_engine.engine import Engine
from rnn_engine.fleet.settings import ReplicaPlace
from rnn_engine.loading.parts import assemble
from rnn_engine.types import (
    F32,
    NO_LORAS,
    Batch,
    LoraPairs,
    ModelShape,
    PendingState,
    Readout,
    ReadyState,
    State,
    Ticket,
)
from rnn_engine_states.cache.cache import make_cache
from rnn_engine_states.cache.config import CacheConfig
from tests.support.models import tiny_shape

MODEL = "modelled"
VOCAB = 256
SHAPE = tiny_shape(layers=1, width=8, head_size=4, ffn=8, vocab=VOCAB)
MARK = b"~"
"""Each token of a `WordTokenizer` has one of these, so clients can count tokens in the raw bytes of an answer."""

ANSWER_TOKEN = 1
"""The token of which every answer of a `ModelledRunner` consists."""

QUEUED = 1000  # the most requests that wait
_NUM_CANDIDATES = 128
_SURE, _UNLIKELY = 10.0, -90.0  # logits


class Clock(Protocol):
    """The interface of a clock in seconds that can also wait until a moment."""

    def now(self) -> float: ...

    def wait_until(self, moment: float) -> None: ...


class RealClock:
    """A clock of real time, in seconds."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        if (left := moment - self.now()) > 0.0:
            time.sleep(left)


class DeviceClock:
    """A clock that adds up the seconds of work of its thread, and the seconds of waiting for a device.

    Time in which other threads had the processor does not count, so a busy machine gives the figures of an idle one.
    For one thread.
    """

    def __init__(self, work: Callable[[], float] = time.thread_time) -> None:
        """`work` returns the seconds of work; one that always returns 0 counts only the waiting."""
        self._work = work
        self._waited = 0.0

    def now(self) -> float:
        return self._work() + self._waited

    def wait_until(self, moment: float) -> None:
        self._waited += max(moment - self.now(), 0.0)


class WordTokenizer:
    """A tokenizer whose tokens are short words that contain `MARK` once.

    A text that consists of such words is encoded as their tokens. Any other word is some token.
    """

    name = "words"

    def __init__(self, size: int) -> None:
        self.size = size
        self.special_tokens: dict[str, int] = {}
        self._words = [b" " + MARK + b"%x" % token for token in range(size)]
        self._tokens = {word[1:]: token for token, word in enumerate(self._words)}

    def encode(self, text: str, /) -> list[int]:
        return [self._tokens.get(word, zlib.crc32(word) % self.size) for word in text.encode().split()]

    def decode_bytes(self, token: int, /) -> bytes:
        return self._words[token]


class ModelledRunner:
    """A `Runner` whose sequences generate `ANSWER_TOKEN` without end. It computes nothing, and its states are empty.

    It runs one step after the other.
    """

    max_draws = max_draw_logprobs = num_penalty_slots = 0
    steps_at_once = 1
    lora_room = NO_LORAS

    def __init__(
        self,
        shape: ModelShape,
        num_slots: int,
        step_seconds: float = 0.0,
        token_seconds: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """Set the duration of a step: `step_seconds` times its draws, plus `token_seconds` for each of its tokens.

        The draws are those of the run with the most; a step without draws counts as one. `clock` must be the host's
        clock, too; None = real time.
        """
        self.shape = shape
        self.num_slots = num_slots
        self.max_tokens = self.max_rows = max(256, num_slots)
        size = min(_NUM_CANDIDATES, shape.vocab_size // 2)
        self._ids = np.tile(np.arange(shape.vocab_size - size, shape.vocab_size, dtype=np.int32), (self.max_rows, 1))
        self._ids[:, 0] = ANSWER_TOKEN
        self._logits = np.full((self.max_rows, size), _UNLIKELY, np.float32)
        self._logits[:, 0] = _SURE
        self._logsumexp = np.full(self.max_rows, _SURE, np.float32)
        self._targets = np.full(self.max_rows, np.nan, np.float32)
        self._sound = np.ones(num_slots, np.bool_)
        self._state = shape.initial_state()
        self._tickets = map(Ticket, count())
        self._in_flight: dict[Ticket, tuple[Readout, float]] = {}  # with the time at which it is done
        self._step_seconds, self._token_seconds = step_seconds, token_seconds
        self._busy_until = 0.0
        self._clock = clock or RealClock()

    def write_lora(self, place: int, lora: LoraPairs) -> None:
        raise NotImplementedError

    def read_out(self, batch: Batch) -> Readout:
        """Return what the host reads back after a step."""
        rows = sum(run.rows for run in batch)
        return Readout(
            ids=self._ids[:rows],
            logits=self._logits[:rows],
            logsumexp=self._logsumexp[:rows],
            allowed_logsumexp=self._logsumexp[:rows],
            target_logits=self._targets[:rows],
            sound=self._sound[: len(batch)],
            full_row=lambda _: self.full_row(ANSWER_TOKEN),
        )

    def full_row(self, token: int) -> F32:
        """Return a row of logits after which `token` is certain."""
        full: F32 = np.full(self.shape.vocab_size, _UNLIKELY, np.float32)
        full[token] = _SURE
        return full

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

    together = nullcontext

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def make_engine(slots: int, step: float, token: float, states: int = 64) -> Engine:
    """Return an engine with a `ModelledRunner` and a cache of `states` states. Needs a running event loop.

    A step takes `step` seconds, and `token` seconds more for each of its tokens.
    """
    runner = ModelledRunner(SHAPE, slots, step, token)
    capacity = states * (SHAPE.state_bytes + 4 * VOCAB)
    config = CacheConfig(host_capacity=capacity, device_capacity=0, index_capacity=1 << 24)
    cache = make_cache(SHAPE, MODEL, runner, config)
    parts = assemble(runner, WordTokenizer(VOCAB), model=MODEL, device="none", weights="f32", cache=cache)
    return Engine(parts, max_queued=QUEUED)


async def load_replica(slots: int, step: float, token: float, states: int, _place: ReplicaPlace) -> Engine:
    """Return the engine of a replica. Ray calls it in the replica's process."""
    return make_engine(slots, step, token, states)
