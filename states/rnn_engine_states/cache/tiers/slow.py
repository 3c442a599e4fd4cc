"""What slow tiers share: full-state files are written in the background, and meanwhile served from their arrays."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass

import numpy as np

from rnn_engine.errors import RnnEngineError
from rnn_engine.types import F32, ModelShape
from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.cache.config import DiskConfig
from rnn_engine_states.cache.eviction import EvictionQueue
from rnn_engine_states.cache.tiers.tier import FoundCopy, MakeRoom, PendingPayload, Tier, ready
from rnn_engine_states.files.full import Origin, SavedState, file_bytes, full_state_file
from rnn_engine_states.frozen import Payload
from rnn_engine_states.shared.config import StoreConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """A copy of a state that is being written, and the future of that write."""

    payload: Payload
    future: Future[None]


class SlowTier(Tier):
    """Base class of the tiers whose copies outlive the process. A copy is written and read by other threads."""

    slow = True

    def __init__(
        self,
        config: DiskConfig | StoreConfig,
        model: str,
        shape: ModelShape,
        *,
        capacity: int,
        patience: float | None,
    ) -> None:
        """Store at most `capacity` bytes of copies.

        `model` is the fingerprint of all settings that must be equal for a state to be continued. `config` bounds the
        bytes that wait to be written. One copy is always accepted, even if it has more. `put` waits at most `patience`
        seconds for others; None means as long as it takes.
        """
        self.queue = EvictionQueue(self.name, capacity)
        self.write_after = config.write_after
        self._model = model
        self._shape = shape
        self._precision = config.precision
        self._background_bytes = config.background_bytes
        self._patience = patience
        self._writes: dict[Checkpoint, _Write] = {}  # those that are not known to have succeeded
        self._waiting: dict[Future[None], int] = {}  # the bytes of each write, including those of forgotten copies
        # Stand-ins for a state's arrays and logits: they have the right shapes and take no memory.
        dtype, initial = np.float16 if config.precision == "f16" else np.float32, shape.initial_state()
        self._arrays = {name: np.broadcast_to(dtype(0), array.shape) for name, array in initial.items()}
        self._logits: F32 = np.broadcast_to(np.float32(0), (shape.row_size,))

    @abstractmethod
    def _start_write(self, checkpoint: Checkpoint, saved: SavedState) -> Future[None]:
        """Start to write a checkpoint's file on another thread."""

    @property
    def is_busy(self) -> bool:
        return bool(self._writes)

    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        logits = self._logits if checkpoint.has_logits else None
        return self._num_bytes(self._saved(checkpoint, Payload(self._arrays, logits)))

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:
        if not self.wants(checkpoint):
            return False
        saved = self._saved(checkpoint, payload.stored_as(self._precision))
        num_bytes = self._num_bytes(saved)
        if not make_room(num_bytes):
            return False
        if not self.is_ready or not self._has_room(num_bytes, self._patience if wait else 0.0):
            self.writes_refused += 1
            return False
        future = self._start_write(checkpoint, saved)
        if self._background_bytes == 0:
            wait_for([future])
        future.add_done_callback(self._count_failure)
        self._waiting[future] = num_bytes
        if not (future.done() and future.exception() is None):
            self._writes[checkpoint] = _Write(saved.payload, future)
        self._enter(checkpoint, num_bytes)
        return True

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of `checkpoint` if it is still being written. Return None if it must be read."""
        write = self._writes.get(checkpoint)
        return None if write is None else write.payload

    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        waiting = self.get(checkpoint)
        return self.start_fetch(checkpoint) if waiting is None else ready(waiting)

    def take_failed(self) -> Sequence[Checkpoint]:
        ended = [checkpoint for checkpoint, write in self._writes.items() if write.future.done()]
        return [checkpoint for checkpoint in ended if self._writes.pop(checkpoint).future.exception() is not None]

    def adopt(self, checkpoint: Checkpoint, found: FoundCopy) -> None:
        self._enter(checkpoint, found.num_bytes)

    def close(self) -> None:
        """Forget the writes, whose futures refer to the tier. A subclass first waits for them."""
        self._writes.clear()
        self._waiting.clear()

    def _saved(self, checkpoint: Checkpoint, payload: Payload) -> SavedState:
        origin = Origin(self._model, checkpoint.root, checkpoint.length, checkpoint.kind.value)
        return SavedState(origin, checkpoint.known_place().tokens(), payload)

    def _num_bytes(self, saved: SavedState) -> int:
        return file_bytes(*full_state_file(saved, self._shape.version, checksums=False))

    def _enter(self, checkpoint: Checkpoint, num_bytes: int) -> None:
        self.queue.add(checkpoint, num_bytes)

    def _count_failure(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.failed_writes += 1
            if not isinstance(error, OSError | RnnEngineError):
                _log.error("a checkpoint could not be written", exc_info=error)

    def _has_room(self, num_bytes: int, patience: float | None) -> bool:
        """Return True if `num_bytes` more bytes may wait to be written, now or within `patience` seconds."""
        until = None if patience is None else time.monotonic() + patience
        while True:
            self._waiting = {future: size for future, size in self._waiting.items() if not future.done()}
            waiting = sum(self._waiting.values())
            if waiting == 0 or waiting + num_bytes <= self._background_bytes:
                return True
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            wait_for(self._waiting, left, FIRST_COMPLETED)
