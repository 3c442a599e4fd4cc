"""Read checkpoints from slow tiers ahead of time, while the requests that need them still wait in the queue.

Requests for the same checkpoint share one read. The total size of all reads is bounded. All but the reads themselves
and the calls of `on_done` runs on the cache's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.frozen import Payload


class Fetch:
    """One request's share in the read of a checkpoint from a slow tier. It locks the checkpoint until `release`."""

    def __init__(self, fetches: Fetches, read: _Read) -> None:
        self._fetches = fetches
        self._read = read
        self._released = False

    @property
    def done(self) -> bool:
        """Whether the read of the checkpoint has ended, with or without an error. May be read on any thread."""
        return self._read.future is not None and self._read.future.done()

    @property
    def failed(self) -> bool:
        """Whether the read of the checkpoint has ended without a copy, because the copy is missing or damaged.

        The caller should then prefetch again, for the next best checkpoint.
        """
        return self.done and self.payload_of(self._read.checkpoint) is None

    def payload_of(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of `checkpoint` if this fetch has read it, else None.

        It is None if the read has not ended or failed, if this was released, or if the read is of another checkpoint.
        """
        future = self._read.future
        if self._released or checkpoint is not self._read.checkpoint or future is None or not future.done():
            return None
        return None if future.cancelled() or self._read.error is not None else future.result()

    def release(self) -> None:
        """Unlock the checkpoint. If no other fetch shares the read, cancel the read or drop the copy that was read.

        Idempotent.
        """
        if not self._released:
            self._released = True
            self._fetches.leave(self._read)


class _Read:
    """The read of one checkpoint from a slow tier, which one or more fetches share."""

    def __init__(self, checkpoint: Checkpoint, size: int, start: Callable[[], Future[Payload]]) -> None:
        self.checkpoint = checkpoint
        self.size = size  # bytes
        self.start = start
        self.num_fetches = 0
        self.waiting: list[Callable[[], None]] = []  # called when the read is done; empty after it has started
        self.future: Future[Payload] | None = None  # None until there is room for the read

    @property
    def error(self) -> BaseException | None:
        """The exception that ended the read, or None if it has not ended or was successful."""
        if self.future is None or not self.future.done() or self.future.cancelled():
            return None
        return self.future.exception()


class Fetches:
    """The queued and running reads of checkpoints from slow tiers, started in the order of their requests."""

    def __init__(self, max_bytes: int, on_unlock: Callable[[Checkpoint], None]) -> None:
        """Bound the copies that are read ahead to `max_bytes` in all. One read is always allowed, even if it has more.

        `on_unlock` is called when the last fetch of a checkpoint has been released.
        """
        self._max_bytes = max_bytes
        self._on_unlock = on_unlock
        self._reads: dict[Checkpoint, _Read] = {}
        self._queued: deque[_Read] = deque()
        self._failed: list[tuple[Checkpoint, BaseException]] = []  # of reads that no fetch shares any more
        self.num_bytes = 0  # of the reads that were started and are still claimed

    def begin(
        self, checkpoint: Checkpoint, size: int, start: Callable[[], Future[Payload]], on_done: Callable[[], None]
    ) -> Fetch:
        """Lock `checkpoint`, and queue the read of its copy of `size` bytes, unless that is queued or running already.

        Return a fetch of it. `start` starts the read. `on_done` is called at the end of the read, mostly on the thread
        that reads, unless the read has ended already.
        """
        read = self._reads.get(checkpoint)
        if read is None:
            read = self._reads[checkpoint] = _Read(checkpoint, size, start)
            self._queued.append(read)
        read.num_fetches += 1
        checkpoint.locks += 1
        if read.future is None:
            read.waiting.append(on_done)
            self._start_queued()
        elif not read.future.done():
            _call_when_done(read.future, on_done)
        return Fetch(self, read)

    def leave(self, read: _Read) -> None:
        """Remove one fetch from a read of a checkpoint, and end the read if it was the last.

        Only for `Fetch.release`.
        """
        read.checkpoint.locks -= 1
        read.num_fetches -= 1
        if read.num_fetches > 0:
            return
        if self._reads.get(read.checkpoint) is read:
            del self._reads[read.checkpoint]
            if (error := read.error) is not None:
                self._failed.append((read.checkpoint, error))
        if read.future is None:
            self._queued.remove(read)
        else:
            read.future.cancel()
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
        while self._queued and (self.num_bytes == 0 or self.num_bytes + self._queued[0].size <= self._max_bytes):
            read = self._queued.popleft()
            self.num_bytes += read.size
            read.future = read.start()
            waiting, read.waiting = read.waiting, []
            for on_done in waiting:
                _call_when_done(read.future, on_done)


def _call_when_done(future: Future[Payload], on_done: Callable[[], None]) -> None:
    future.add_done_callback(lambda ended: None if ended.cancelled() else on_done())
