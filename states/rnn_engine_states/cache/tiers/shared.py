"""The state cache's tier in a store that several servers share: full-state files under the hashes of their tokens.

A state that one server stores there can be used by all others. So before a prompt is looked up, an inquiry asks the
store for the longest prefix that it has. The cache then treats that copy like a file on disk. The store bounds its
bytes itself and drops the least recently used copies. A store that is slow, full or gone costs the time of a few
operations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnn_engine.errors import RnnEngineError, StateError
from rnn_engine.types import ModelShape
from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.cache.tiers.tier import SlowTier
from rnn_engine_states.files.full import SavedState, file_parts, full_state_file, parse_full_state
from rnn_engine_states.frozen import Payload
from rnn_engine_states.shared.config import StoreCounters
from rnn_engine_states.shared.keys import PathKeys
from rnn_engine_states.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from rnn_engine_states.shared.checkpoints import CheckpointStore, StoreAnswer
    from rnn_engine_states.shared.config import OpenStore

CLOSE_SECONDS = 10.0  # to wait at the end for copies that are being written

_RECORD_BYTES = 1600  # an estimate of the host memory of the records of one copy, besides its tokens
_UNBOUNDED = 1 << 40  # bytes; the capacity if the store reports no bound
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Inquiry:
    """A query to the shared store for a prompt's checkpoints, for the cache's thread; `done` for any."""

    _future: Future[StoreAnswer]
    _taken: bool = False

    @property
    def done(self) -> bool:
        return self._future.done()

    def take(self) -> StoreAnswer | None:
        """Return the answer at the first call after it has arrived, else None."""
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


class SharedTier(SlowTier):
    """The tier in a store that servers share. Store operations run on the client's thread, all else on the cache's."""

    name = "shared"
    shared = True

    def __init__(
        self, store: OpenStore, checkpoints: CheckpointStore, model: str, shape: ModelShape, max_record_bytes: int
    ) -> None:
        """Store copies of states by `checkpoints` in `store`.

        When this tier's records in host memory take `max_record_bytes`, a new copy is recorded only after others have
        been evicted.
        """
        config = store.config
        super().__init__(config, model, shape, capacity=store.capacity or _UNBOUNDED, patience=config.timeout)
        self.min_tokens = config.min_tokens
        self._client = store.client
        self._store = checkpoints
        self._max_record_bytes = max_record_bytes
        self._record_bytes = 0

    def counters(self) -> StoreCounters:
        return self._client.counters()

    def inquire(
        self, root: str, tokens: bytes, shortest: int, longest: int, on_done: Callable[[], None]
    ) -> Inquiry | None:
        """Ask for the longest checkpoint of packed `tokens`; None after failures. See `StateCache.inquire`."""
        if self._client.refuses(reading=True):
            return None
        path = PathKeys(self._model, root, tokens)
        future = self._client.submit(self._store.find(path, shortest, longest))
        future.add_done_callback(lambda ended: None if ended.cancelled() else on_done())
        return Inquiry(future)

    @property
    def is_crowded(self) -> bool:
        return self._record_bytes > 0 and self._record_bytes >= self._max_record_bytes

    @property
    def is_ready(self) -> bool:
        return not self._client.refuses()

    def wants(self, checkpoint: Checkpoint) -> bool:
        return super().wants(checkpoint) and checkpoint.length >= self.min_tokens

    def _start_write(self, checkpoint: Checkpoint, saved: SavedState) -> Future[None]:  # noqa: ARG002
        return self._client.submit(self._write(saved))

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Start to read a copy from the store. The future raises StateError or UnavailableError."""
        tokens = checkpoint.known_place().tokens()
        return self._client.submit(self._read(checkpoint.root, tokens, checkpoint.has_logits))

    def drop(self, checkpoint: Checkpoint) -> None:
        """Remove the tier's record of a copy. The copy stays in the shared store for other servers until it expires."""
        self.queue.remove(checkpoint)
        self._record_bytes -= _record_bytes(checkpoint)
        self._writes.pop(checkpoint, None)

    def close(self) -> None:
        """Wait until all copies are written to the store, but at most `CLOSE_SECONDS`."""
        wait_for(self._waiting, CLOSE_SECONDS)
        super().close()

    def _enter(self, checkpoint: Checkpoint, num_bytes: int) -> None:
        super()._enter(checkpoint, num_bytes)
        self._record_bytes += _record_bytes(checkpoint)

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

    def _encode(self, saved: SavedState) -> bytes:
        return b"".join(file_parts(*full_state_file(saved, self._shape.version)))

    async def _write(self, saved: SavedState) -> None:
        path = PathKeys(self._model, saved.origin.initial_state, saved.tokens or b"")
        has_logits = saved.payload.logits is not None
        if not await self._store.renew(path, has_logits=has_logits):
            data = await asyncio.to_thread(self._encode, saved)
            await self._store.put(path, data, has_logits=has_logits, kind=saved.origin.kind)


def _record_bytes(checkpoint: Checkpoint) -> int:
    return _RECORD_BYTES + TOKEN_BYTES * checkpoint.length
