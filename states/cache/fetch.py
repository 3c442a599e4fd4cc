"""Reading checkpoints from slow tiers while the requests that want them still wait in the queue.

Requests that want the same checkpoint share one read, and all reads together keep a bounded number of bytes.
Everything but the reads themselves and the calls of `on_done` happens on the cache's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from states.cache.checkpoint import Checkpoint
from states.payload import Payload


class Fetch:
    """One request's claim on a checkpoint that is being read. It locks the checkpoint until `release`."""

    def __init__(self, fetches: Fetches, read: _Read) -> None:
        self._fetches = fetches
        self._read = read
        self._released = False

    @property
    def done(self) -> bool:
        """Whether the read has ended, well or badly. May be asked on any thread."""
        return self._read.future is not None and self._read.future.done()

    @property
    def failed(self) -> bool:
        """Whether a read that is done brought nothing: prefetch again, for the next best may have to be read, too."""
        return self.done and self.payload_of(self._read.checkpoint) is None

    def payload_of(self, checkpoint: Checkpoint) -> Payload | None:
        """What was read of `checkpoint`; None where another one is fetched, or where it is not there yet or damaged."""
        future = self._read.future
        if self._released or checkpoint is not self._read.checkpoint or future is None or not future.done():
            return None
        return None if future.cancelled() or self._read.error is not None else future.result()

    def release(self) -> None:
        """Unlock the checkpoint and let go of what was read, if no other fetch has it. Idempotent."""
        if not self._released:
            self._released = True
            self._fetches.leave(self._read)


class _Read:
    """A read that one or more fetches share."""

    def __init__(self, checkpoint: Checkpoint, size: int, start: Callable[[], Future[Payload]]) -> None:
        self.checkpoint = checkpoint
        self.size = size  # bytes
        self.start = start
        self.num_fetches = 0
        self.waiting: list[Callable[[], None]] = []  # to be called when it is done; empty from the start of the read on
        self.future: Future[Payload] | None = None  # None until there is room for it

    @property
    def error(self) -> BaseException | None:
        """Why the read failed; None where it has not ended, or ended well."""
        if self.future is None or not self.future.done() or self.future.cancelled():
            return None
        return self.future.exception()


class Fetches:
    """The reads that requests wait for, in the order in which they were asked for."""

    def __init__(self, max_bytes: int, on_unlock: Callable[[Checkpoint], None]) -> None:
        """At most `max_bytes` are read ahead, but one read is always allowed.

        `on_unlock` is called when the last fetch of a checkpoint has been released.
        """
        self._max_bytes = max_bytes
        self._on_unlock = on_unlock
        self._reads: dict[Checkpoint, _Read] = {}
        self._queued: deque[_Read] = deque()
        self._failed: list[tuple[Checkpoint, BaseException]] = []  # of reads that nobody claims any more
        self.num_bytes = 0  # of the reads that have begun and are claimed

    def begin(
        self, checkpoint: Checkpoint, size: int, start: Callable[[], Future[Payload]], on_done: Callable[[], None]
    ) -> Fetch:
        """Claim `checkpoint`, whose copy has `size` bytes and is read by `start` unless a read is under way.

        `on_done` is called at the end of the read, mostly on the thread that reads, unless the read has ended already.
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
        """Used by `Fetch.release`."""
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
        """The checkpoints whose reads have failed since the last call, and why."""
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
