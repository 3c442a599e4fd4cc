"""The state cache's tier in a store that several servers share: full-state files under the hashes of their tokens.

A state that one server stores there can be used by all others. So before a prompt is looked up, an inquiry asks the
store for the longest prefix that it has. The cache then treats that copy like a file on disk. The store bounds its
bytes itself and drops the least recently used copies. A store that is slow, full or gone costs the time of a few
operations.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnn_engine.errors import RnnEngineError, StateError
from rnn_engine.types import ModelShape
from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.cache.eviction import EvictionQueue
from rnn_engine_states.cache.tiers.disk import StateFileForm
from rnn_engine_states.cache.tiers.tier import FoundCopy, MakeRoom, PendingPayload, ReadyPayload, Tier
from rnn_engine_states.files.full import SavedState, full_state_parts, parse_full_state
from rnn_engine_states.frozen import Payload
from rnn_engine_states.shared.config import StoreConfig, StoreCounters
from rnn_engine_states.shared.entries import PathKeys
from rnn_engine_states.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from rnn_engine_states.shared.checkpoints import CheckpointStore
    from rnn_engine_states.shared.client import StoreClient

CLOSE_SECONDS = 10.0  # to wait at the end for copies that are being written

_RECORD_BYTES = 1600  # an estimate of the host memory of the records of one copy, besides its tokens
_UNBOUNDED = 1 << 40  # bytes; the capacity if the store reports no bound
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The shared store's answer about a prompt: its longest checkpoint, and the prefix shared with other paths."""

    root: str
    known: bytes  # packed; the prefix of the prompt, in whole blocks, that another server's path shares
    found: FoundCopy | None  # the longest copy from which the prompt can go on


class Inquiry:
    """A running or finished query to the shared store for checkpoints of a prompt.

    For the cache's thread; `done` may be read on any thread.
    """

    def __init__(self, future: Future[StoreAnswer]) -> None:
        self._future = future
        self._taken = False

    @property
    def done(self) -> bool:
        """Whether the query to the shared store has ended, with or without an answer."""
        return self._future.done()

    def take(self) -> StoreAnswer | None:
        """Return the shared store's answer to the query, at the first call after it has arrived.

        Return None later, or if the query failed or has not ended.
        """
        if self._taken or not self._future.done() or self._future.cancelled():
            return None
        self._taken = True
        error = self._future.exception()
        if error is not None and not isinstance(error, RnnEngineError):
            _log.error("the look-up in the shared store failed", exc_info=error)
        return None if error is not None else self._future.result()

    def cancel(self) -> None:
        """Cancel the query to the shared store. Does nothing if it has ended."""
        self._future.cancel()


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """A copy of a state that is being written to the shared store, and the future of that write."""

    payload: Payload
    future: Future[None]


class SharedTier(Tier):
    """The cache's tier in a shared store. It stores copies of states that other servers use, too.

    Store operations run on the client's thread, all else on the cache's thread.
    """

    name = "shared"
    slow = True
    shared = True

    def __init__(
        self,
        config: StoreConfig,
        client: StoreClient,
        store: CheckpointStore,
        capacity: int | None,
        model: str,
        shape: ModelShape,
        max_record_bytes: int,
    ) -> None:
        """Store copies of states in `store`, which uses `client`.

        `capacity` is the store's size limit in bytes, if it is known. When this tier's records in host memory take
        `max_record_bytes`, a new copy is recorded only after others have been evicted.
        """
        self.queue = EvictionQueue(self.name, capacity or _UNBOUNDED)
        self.write_after = config.write_after
        self.min_tokens = config.min_tokens
        self._client = client
        self._store = store
        self._model = model
        self._shape = shape
        self._form = StateFileForm(model, shape, config.precision)
        self._patience = config.timeout
        self._most_waiting = config.background_bytes
        self._max_record_bytes = max_record_bytes
        self._record_bytes = 0
        self._writes: dict[Checkpoint, _Write] = {}
        self._held: dict[Future[None], int] = {}  # bytes that wait to be written, including those of forgotten copies

    def counters(self) -> StoreCounters:
        """Return the counters of the client by which the tier uses the shared store."""
        return self._client.counters()

    def inquire(
        self, root: str, tokens: bytes, shortest: int, longest: int, on_done: Callable[[], None]
    ) -> Inquiry | None:
        """Ask the shared store for the longest checkpoint along packed `tokens` with `shortest` to `longest` tokens.

        See `StateCache.inquire`. Returns None while the store is not used because it has failed.
        """
        if self._client.refuses_reading:
            return None
        future = self._client.submit(self._find(root, tokens, shortest, longest))
        future.add_done_callback(lambda ended: None if ended.cancelled() else on_done())
        return Inquiry(future)

    @property
    def is_crowded(self) -> bool:
        return self._record_bytes > 0 and self._record_bytes >= self._max_record_bytes

    @property
    def is_ready(self) -> bool:
        return not self._client.refuses

    @property
    def is_busy(self) -> bool:
        return bool(self._writes)

    def wants(self, checkpoint: Checkpoint) -> bool:
        return super().wants(checkpoint) and checkpoint.length >= self.min_tokens

    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        return self._form.expected_bytes(checkpoint)

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:
        if not self.wants(checkpoint):
            return False
        saved = self._form.saved(checkpoint, payload)
        num_bytes = self._form.num_bytes(saved)
        if not make_room(num_bytes):
            return False
        if not self.is_ready or not self._has_room(num_bytes, self._patience if wait else 0.0):
            self.writes_refused += 1
            return False
        future = self._client.submit(self._write(saved))
        self._enter(checkpoint, num_bytes)
        self._held[future] = num_bytes
        self._writes[checkpoint] = _Write(payload, future)
        return True

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of `checkpoint` if it is still being written to the store. Return None if it must be read."""
        write = self._writes.get(checkpoint)
        return None if write is None else write.payload

    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        waiting = self.get(checkpoint)
        return self.start_fetch(checkpoint) if waiting is None else ReadyPayload(waiting)

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Start to read a checkpoint's copy from the shared store.

        The future raises StateError or UnavailableError if the copy can't be used.
        """
        tokens = checkpoint.known_place().tokens()
        return self._client.submit(self._read(checkpoint.root, tokens, checkpoint.has_logits))

    def drop(self, checkpoint: Checkpoint) -> None:
        """Remove the tier's record of a copy. The copy stays in the shared store for other servers until it expires."""
        self.queue.remove(checkpoint)
        self._record_bytes -= _record_bytes(checkpoint)
        self._writes.pop(checkpoint, None)

    def take_failed(self) -> Sequence[Checkpoint]:
        ended = [checkpoint for checkpoint, write in self._writes.items() if write.future.done()]
        failed = [one for one in ended if self._writes.pop(one).future.exception() is not None]
        self.failed_writes += len(failed)
        return failed

    def adopt(self, checkpoint: Checkpoint, found: FoundCopy) -> None:
        self._enter(checkpoint, found.num_bytes)

    def close(self) -> None:
        """Wait until all copies are written to the store, but at most `CLOSE_SECONDS`."""
        wait_for(self._held, CLOSE_SECONDS)

    def _enter(self, checkpoint: Checkpoint, num_bytes: int) -> None:
        self.queue.add(checkpoint, num_bytes)
        self._record_bytes += _record_bytes(checkpoint)

    def _has_room(self, num_bytes: int, patience: float) -> bool:
        """Return True if `num_bytes` more bytes may be queued for writing, now or within `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            self._held = {future: size for future, size in self._held.items() if not future.done()}
            held = sum(self._held.values())
            if held == 0 or held + num_bytes <= self._most_waiting:
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            wait_for(self._held, left, FIRST_COMPLETED)

    async def _find(self, root: str, tokens: bytes, shortest: int, longest: int) -> StoreAnswer:
        along = await self._store.find(PathKeys(self._model, root, tokens), shortest, longest)
        known, found = tokens[: along.known * TOKEN_BYTES], None
        if (listed := along.longest) is not None:
            path = tokens[: listed.length * TOKEN_BYTES]
            found = FoundCopy(self.name, root, path, listed.kind, listed.has_logits, listed.num_bytes)
        return StoreAnswer(root, known, found)

    async def _read(self, root: str, tokens: bytes, has_logits: bool) -> Payload:
        path = PathKeys(self._model, root, tokens)
        data = await self._store.get(path)
        name = f"the shared state of {path.length} tokens"
        if data is None:
            await self._store.delete(path)
            raise StateError(f"{name} is no longer in the store")
        try:
            saved = await asyncio.to_thread(parse_full_state, data, name, self._shape, self._model)
            if (saved.origin.initial_state, saved.tokens) != (root, tokens):
                raise StateError(f"{name} belongs to other tokens or to another initial state")
            if has_logits and saved.payload.logits is None:
                raise StateError(f"{name} has lost its logits")
        except StateError as error:
            self._client.note_unreadable("a checkpoint's state", error)
            await self._store.delete(path)
            raise
        return saved.payload if has_logits else Payload(saved.payload.state, None)

    async def _write(self, saved: SavedState) -> None:
        path = PathKeys(self._model, saved.origin.initial_state, saved.tokens or b"")
        has_logits = saved.payload.logits is not None
        if not await self._store.renew(path, has_logits=has_logits):
            data = await asyncio.to_thread(b"".join, full_state_parts(saved, self._shape.version))
            await self._store.put(path, data, has_logits=has_logits, kind=saved.origin.kind)


def _record_bytes(checkpoint: Checkpoint) -> int:
    return _RECORD_BYTES + TOKEN_BYTES * checkpoint.length
