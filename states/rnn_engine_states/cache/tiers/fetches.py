"""Read checkpoints from slow tiers ahead of time, while the requests that need them still wait in the queue.

Requests for the same checkpoint share one read. The total size of all reads is bounded, and their owners take turns.
All but the reads themselves and the calls of `on_done` runs on the cache's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.frozen import Payload


@dataclass(slots=True, eq=False)
class Fetch:
    """One request's share in the read of a checkpoint from a slow tier. It locks the checkpoint until `release`."""

    _fetches: Fetches
    _read: _Read
    _released: bool = False

    @property
    def done(self) -> bool:
        """Whether the read of the checkpoint has ended, with or without an error. May be read on any thread."""
        return self._read.ended.done()

    @property
    def failed(self) -> bool:
        """Whether the copy turned out missing or damaged, so that the caller should prefetch again."""
        return self.done and self.payload_of(self._read.checkpoint) is None

    def payload_of(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of `checkpoint` if this fetch, not yet released, has read it, else None."""
        if self._released or not self.done or checkpoint is not self._read.checkpoint or self._read.error is not None:
            return None
        return self._read.ended.result()

    def release(self) -> None:
        """Unlock the checkpoint, and end a read that no other fetch shares. Idempotent."""
        if not self._released:
            self._released = True
            self._fetches.leave(self._read)


@dataclass(slots=True, eq=False)
class _Read:
    """The read of one checkpoint from a slow tier, which one or more fetches share."""

    checkpoint: Checkpoint
    size: int  # bytes
    start: Callable[[], Future[Payload]]
    owner: Hashable  # who asked first
    num_fetches: int = 0
    running: Future[Payload] | None = None  # None until there is room for the read
    ended: Future[Payload] = field(default_factory=Future)  # has the result of `running`, unless that is cancelled

    @property
    def error(self) -> BaseException | None:
        return self.ended.exception() if self.ended.done() else None


class Fetches:
    """The queued and running reads of checkpoints from slow tiers, started in turns of their owners."""

    def __init__(self, max_bytes: int, on_unlock: Callable[[Checkpoint], None]) -> None:
        """Bound the copies that are read ahead to `max_bytes` in all. One read is always allowed, even if it has more.

        `on_unlock` is called when the last fetch of a checkpoint has been released.
        """
        self._max_bytes = max_bytes
        self._on_unlock = on_unlock
        self._reads: dict[Checkpoint, _Read] = {}
        self._queued: dict[Hashable, deque[_Read]] = {}  # by owner, in the order of their turns; none is empty
        self._failed: list[tuple[Checkpoint, BaseException]] = []  # of reads that no fetch shares any more
        self.num_bytes = 0  # of the reads that were started and are still claimed

    def begin(
        self,
        checkpoint: Checkpoint,
        size: int,
        start: Callable[[], Future[Payload]],
        on_done: Callable[[], None],
        owner: Hashable = None,
    ) -> Fetch:
        """Lock `checkpoint`, and queue the read of its copy of `size` bytes, unless that is queued or running already.

        Return a fetch of it. Owners take turns. `start` starts the read. `on_done` is called at the end of the read,
        mostly on the thread that reads, unless the read has ended already.
        """
        read = self._reads.get(checkpoint)
        if read is None:
            read = self._reads[checkpoint] = _Read(checkpoint, size, start, owner)
            self._queued.setdefault(owner, deque()).append(read)
        read.num_fetches += 1
        checkpoint.locks += 1
        if not read.ended.done():
            read.ended.add_done_callback(lambda _: on_done())
            self._start_queued()
        return Fetch(self, read)

    def leave(self, read: _Read) -> None:
        """Remove a fetch from its read, and end the read after the last. Only for `Fetch.release`."""
        read.checkpoint.locks -= 1
        read.num_fetches -= 1
        if read.num_fetches > 0:
            return
        if self._reads.get(read.checkpoint) is read:
            del self._reads[read.checkpoint]
            if (error := read.error) is not None:
                self._failed.append((read.checkpoint, error))
        if read.running is None:
            self._queued[read.owner].remove(read)
            if not self._queued[read.owner]:
                del self._queued[read.owner]
        else:
            read.running.cancel()
            self.num_bytes -= read.size
        self._on_unlock(read.checkpoint)
        self._start_queued()

    def take_failed(self) -> list[tuple[Checkpoint, BaseException]]:
        """Return the checkpoints whose reads have failed since the last call, each with the exception."""
        failed, self._failed = self._failed, []
        for read in list(self._reads.values()):
            if (error := read.error) is not None:
                del self._reads[read.checkpoint]
                failed.append((read.checkpoint, error))
        return failed

    def _start_queued(self) -> None:
        while self._queued:
            owner, reads = next(iter(self._queued.items()))
            if self.num_bytes > 0 and self.num_bytes + reads[0].size > self._max_bytes:
                return
            read = reads.popleft()
            del self._queued[owner]
            if reads:
                self._queued[owner] = reads  # now the last
            self.num_bytes += read.size
            read.running = read.start()
            read.running.add_done_callback(partial(_pass_on, read.ended))


def _pass_on(ended: Future[Payload], read: Future[Payload]) -> None:
    if not read.cancelled():
        error = read.exception()
        if error is None:
            ended.set_result(read.result())
        else:
            ended.set_exception(error)
