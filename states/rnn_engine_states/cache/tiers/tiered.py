"""`TieredStore`: the tiers of the state cache as one store, with reads ahead from slow tiers and writes behind to them.

`copies.py` moves copies between the tiers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from rnn_engine.errors import StateError
from rnn_engine.types import F32
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason
from rnn_engine_states.cache.config import CacheConfig, CacheStats
from rnn_engine_states.cache.tiers.copies import Copies, Keeper, value_of
from rnn_engine_states.cache.tiers.tier import (
    Access,
    CopySource,
    DevicePayload,
    DevicePool,
    FoundCopy,
    LiveStates,
    ReadyPayload,
    Tier,
)
from rnn_engine_states.frozen import Payload

# Reading checkpoints from slow tiers ahead of time, while the requests that need them still wait in the queue.
#
# Requests for the same checkpoint share one read. The total size of all reads is bounded. All but the reads themselves
# and the calls of `on_done` runs on the cache's thread.


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


_log = logging.getLogger(__name__)


class TieredStore:
    """The copies of all checkpoints in all tiers, as one store. For the thread that owns the device."""

    def __init__(
        self,
        live: LiveStates,
        tiers: Sequence[Tier],
        stats: CacheStats,
        on_lost: Callable[[Checkpoint], None],
        config: CacheConfig,
        clock: Callable[[], float],
    ) -> None:
        """Store copies of states in `tiers`, ordered from the quickest to the slowest, and count operations in `stats`.

        `live` are the device's slots. `on_lost` is called with each checkpoint that has just lost its last copy.
        `clock` returns seconds.
        """
        self.tiers = tuple(tiers)
        self._live = live
        self._stats = stats
        self._copies = Copies(tiers, stats, on_lost)
        self._fetches = Fetches(config.fetch_capacity, self._copies.touch)
        self._keepers = tuple(Keeper(tier, self._copies, clock) for tier in self.tiers if tier.slow)
        self.any_slow = bool(self._keepers)

    def save(self, checkpoint: Checkpoint, slot: int, logits: F32 | None) -> bool:
        """Store the live state of `slot` in the quickest tier that has or makes room. Return False if none does."""
        checkpoint.has_logits = logits is not None
        source = CopySource(lambda: DevicePayload(self._live.start_read(slot), logits), logits, slot)
        for tier in self.tiers:
            if self._copies.add(tier, checkpoint, source):
                self._copies.stats_of[tier.name].stored += 1
                self._note_unwritten(checkpoint)
                return True
        self._stats.not_stored += not checkpoint.is_waypoint
        return False

    def upgrade(self, checkpoint: Checkpoint, kind: CheckpointKind) -> None:
        """Change the kind of a waypoint to `kind`, so that it is evicted later. Does nothing for other checkpoints."""
        if not checkpoint.is_waypoint:
            return
        checkpoint.kind = kind
        checkpoint.saves = checkpoint.tokens_to_shorter()
        self.touch(checkpoint)
        self._note_unwritten(checkpoint)

    def access(self, checkpoint: Checkpoint) -> Access:
        """Return how soon a sequence can start from a checkpoint, which must have a copy in some tier."""
        move = self._copies.move_of(checkpoint)
        if move is not None:
            return Access.MOVING if move.source.slow else Access.AT_HAND
        holders = [tier for tier in self.tiers if tier.name in checkpoint.sizes]
        at_hand = any(not tier.slow or tier.get(checkpoint) is not None for tier in holders)
        return Access.AT_HAND if at_hand else Access.SLOW

    def quickest(self, checkpoint: Checkpoint) -> Tier:
        """Return the quickest tier that has a copy of `checkpoint`."""
        return self._copies.quickest(checkpoint)

    def start_fetch(self, checkpoint: Checkpoint, on_done: Callable[[], None]) -> Fetch:
        """Start to read a checkpoint that only a slow tier has. If its copy is damaged, `settle` drops it.

        For `on_done`, see `Fetches.begin`.
        """
        tier = self.quickest(checkpoint)
        return self._fetches.begin(
            checkpoint, checkpoint.sizes[tier.name], lambda: tier.start_fetch(checkpoint), on_done
        )

    def payload(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of a checkpoint that waits to be written to a slow tier, if no quick tier has a copy.

        Else return None. The caller must keep the copy, since it leaves memory once it is written. If the checkpoint is
        in transfer to the slow tier, waits for the transfer; if that fails, the checkpoint is lost.
        """
        move = self._copies.move_of(checkpoint)
        tier = self.quickest(checkpoint)
        if not tier.slow:
            return None
        if move is None:
            return tier.get(checkpoint)
        return self._copies.arrive(checkpoint)

    def logits(self, checkpoint: Checkpoint, fetched: Payload | None) -> F32 | None:
        """Return the last logits of a checkpoint: those in `fetched`, or those of a copy that can be used at once."""
        if fetched is not None:
            return fetched.logits
        move = self._copies.move_of(checkpoint)
        return self.quickest(checkpoint).logits(checkpoint) if move is None else move.source.logits

    def load(self, checkpoint: Checkpoint, slot: int, fetched: Payload | None) -> None:
        """Load a checkpoint's state into `slot`, from `fetched` or a copy that can be used at once.

        Copy it to a quicker tier. Raises StateError if its copy has been lost.
        """
        payload = fetched or self._copies.arrive(checkpoint)
        tier = self.quickest(checkpoint) if checkpoint.resumable else None
        if tier is not None and tier.on_device:
            tier.load(checkpoint, slot)
            return
        if payload is None and tier is not None:
            payload = tier.get(checkpoint)
        if payload is None:
            raise StateError("the copy of a state was lost before it was used")
        self._live.write_state(slot, payload.expand())
        if tier is not None:
            self._copies.promote(checkpoint, tier, CopySource(partial(ReadyPayload, payload), payload.logits, slot))

    def touch(self, checkpoint: Checkpoint) -> None:
        """Update the worth of a checkpoint in the eviction queue of every tier that has a copy of it."""
        self._copies.touch(checkpoint)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Remove all copies of a checkpoint from the tiers, without reporting it as lost."""
        for tier in self.tiers:
            if tier.name in checkpoint.sizes:
                self._copies.drop(tier, checkpoint)

    @property
    def num_copies(self) -> int:
        """The number of copies in all tiers."""
        return sum(len(tier.queue) for tier in self.tiers)

    @property
    def num_waypoints(self) -> int:
        """The number of copies of waypoints in all tiers."""
        return sum(tier.queue.num_waypoints for tier in self.tiers)

    def adopt(self, tier: Tier, checkpoint: Checkpoint, found: FoundCopy) -> bool:
        """Register a copy found in a tier as the copy of `checkpoint`.

        Return False if the tier can't make room for it.
        """
        if not self._copies.make_room(tier, found.num_bytes):
            return False
        tier.adopt(checkpoint, found)
        return True

    def evict(self, *, waypoints: bool) -> Checkpoint | None:
        """Remove the checkpoint of least worth from the slowest tier that has an unlocked one, and return it.

        Returns None if all are locked. Considers only waypoints, or only other checkpoints. Drops all its copies
        without demotion or `on_lost`. If that tier is shared, drops only its copy there: asking the store again is
        cheaper than a forward pass.
        """
        for tier in reversed(self.tiers):
            weakest = tier.queue.weakest(waypoints_only=True) if waypoints else tier.queue.weakest_other()
            if weakest is not None:
                self._copies.stats_of[tier.name].evictions += 1
                if tier.shared:
                    self._copies.drop(tier, weakest)
                else:
                    self.drop(weakest)
                return weakest
        return None

    def settle(self) -> None:
        """Add the copies whose reads have ended to their target tiers. Drop those that could not be read or written."""
        for checkpoint, error in self._fetches.take_failed():
            lost = checkpoint.resumable and self.access(checkpoint) is Access.SLOW
            tier = self.quickest(checkpoint) if lost else None
            # A lost copy of a shared store is logged only as information: the store may drop copies at any time, and
            # its client logs failures of the store itself.
            level = logging.INFO if tier is not None and tier.shared else logging.WARNING
            _log.log(level, "a checkpoint is lost: %s", error)
            if tier is not None:
                self._lose(tier, checkpoint)
        for tier in self.tiers:
            for checkpoint in tier.take_failed():
                self._lose(tier, checkpoint)
        self._copies.finish_moves(wait=False)

    def lose_device(self) -> None:
        """Drop all copies of states on a failed device and those being read from it, without using the device."""
        self._copies.lose_device()

    def use_device(self, live: LiveStates, pool: DevicePool) -> None:
        """Continue with another device, which has the slots `live` and the slabs `pool`.

        The tier on the device must be empty.
        """
        self._live = live
        for tier in self.tiers:
            if tier.on_device:
                tier.use_pool(pool)

    def flush(self) -> None:
        """Write to each slow tier the most valuable checkpoints that it lacks, as many as fit. Waits for the reads."""
        self._copies.finish_moves(wait=True)
        by_value = sorted({one for tier in self.tiers for one in tier.queue}, key=value_of, reverse=True)
        for keeper in self._keepers:
            keeper.flush(by_value)
        self._copies.finish_moves(wait=True)

    def write_behind(self) -> None:
        """Write to the slow tiers the checkpoints that have reached the configured age, as many as fit."""
        self.settle()
        for keeper in self._keepers:
            keeper.run()

    @property
    def has_unwritten(self) -> bool:
        """Whether checkpoints wait to be written to slow tiers by `write_behind`. May be read on any thread."""
        return any(not keeper.is_idle for keeper in self._keepers) or any(tier.is_busy for tier in self.tiers)

    def close(self) -> None:
        """Close every tier of the store. Waits for the copies that are being written."""
        for tier in self.tiers:
            tier.close()

    def _lose(self, tier: Tier, checkpoint: Checkpoint) -> None:
        self._stats.lost_files += 1
        self._copies.drop(tier, checkpoint)
        if not checkpoint.resumable:
            checkpoint.absence = MissReason.DAMAGED
        else:
            self._note_unwritten(checkpoint)
        self._copies.tell_if_lost(checkpoint)

    def _note_unwritten(self, checkpoint: Checkpoint) -> None:
        for keeper in self._keepers:
            keeper.note(checkpoint)
