"""Move copies of checkpoints between the tiers: down when a tier is full, up after a hit, and to slow tiers by age.

A checkpoint may have copies in several tiers. Before a copy is evicted, the next tier that accepts it gets a copy,
unless a slower tier of this machine has one already. A hit copies the checkpoint to a quicker tier and keeps the slower
copies, so that the quick copy can later be evicted without a transfer. Locked checkpoints keep all their copies.

A copy that must be read first, from the device or from a slow tier, moves in the background. From the start of the read
the target tier's queue counts it, and it is put there when it has arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rnn_engine_states.cache.checkpoint import Checkpoint
from rnn_engine_states.cache.config import CacheStats
from rnn_engine_states.cache.tiers.tier import CopySource, Move, PendingPayload, ReadyPayload, Tier
from rnn_engine_states.frozen import Payload

MOST_READS = 4  # at a time: each has a copy in host memory, and reads from the device take device time

_log = logging.getLogger(__name__)


class Keeper:
    """Writes checkpoints to one slow tier at a certain age, before they are evicted from quicker tiers.

    So a crash loses only the checkpoints of the last seconds, and not all those in memory. For the thread that owns the
    device; `is_idle` may be read on any thread.
    """

    def __init__(self, tier: Tier, copies: Copies, clock: Callable[[], float]) -> None:
        self._tier = tier
        self._copies = copies
        self._clock = clock
        self._since: dict[Checkpoint, float] = {}  # when `note` was called; the earliest first
        self._reads: dict[Checkpoint, PendingPayload] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint waits to be written to the slow tier."""
        return not self._since and not self._reads

    def note(self, checkpoint: Checkpoint) -> None:
        """Schedule a checkpoint to be written to the slow tier once it is old enough, if the tier has no copy of it."""
        if self._lacks(checkpoint):
            self._since.setdefault(checkpoint, self._clock())

    def run(self) -> None:
        """Start to read the checkpoints that are old enough to be written, and write the copies whose reads have ended.

        Does not wait.
        """
        for checkpoint, pending in list(self._reads.items()):
            if pending.done():
                del self._reads[checkpoint]
                try:
                    payload = pending.result()
                except Exception as error:
                    _log.warning("a checkpoint is not written to disk: its copy can't be read: %s", error)
                else:
                    self._write(checkpoint, payload)
        for checkpoint, since in list(self._since.items()):
            if self._clock() - since < self._tier.write_after or len(self._reads) >= MOST_READS:
                return
            del self._since[checkpoint]
            if self._copies.move_of(checkpoint) is not None or not self._tier.is_ready:
                self.note(checkpoint)
            elif self._lacks(checkpoint):
                self._reads[checkpoint] = self._copies.quickest(checkpoint).start_read(checkpoint)

    def flush(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Write to the slow tier those of `checkpoints` that no slow tier has, as many as fit.

        Waits until the tier accepts them.
        """
        tier, budget = self._tier, self._tier.queue.capacity

        def make_room(size: int) -> bool:
            nonlocal budget
            budget -= size
            return budget >= 0 and self._copies.make_room(tier, size)

        for checkpoint in checkpoints:
            budget -= checkpoint.sizes.get(tier.name, 0)
            if not self._lacks(checkpoint) or self._copies.quickest(checkpoint).slow:
                continue
            try:
                payload = self._copies.quickest(checkpoint).start_read(checkpoint).result()
            except Exception as error:
                _log.warning("a checkpoint is lost: it can't be read while the cache closes: %s", error)
                continue
            if not tier.put(checkpoint, payload, make_room, wait=True):
                return

    def _lacks(self, checkpoint: Checkpoint) -> bool:
        tier = self._tier
        return checkpoint.resumable and tier.name not in checkpoint.sizes and tier.wants(checkpoint)

    def _write(self, checkpoint: Checkpoint, payload: Payload) -> None:
        if not self._lacks(checkpoint):
            return
        fits = True

        def make_room(size: int) -> bool:
            nonlocal fits
            fits = self._make_room_for(checkpoint, size)
            return fits

        changed = self._copies.move_of(checkpoint) is not None or (payload.logits is not None) != checkpoint.has_logits
        if (changed or not self._tier.put(checkpoint, payload, make_room)) and fits:
            self.note(checkpoint)  # the writer is too far behind

    def _make_room_for(self, checkpoint: Checkpoint, size: int) -> bool:
        """Evict checkpoints of less value than `checkpoint` from the slow tier, until it has `size` free bytes.

        Return False if that fails. In a shared tier, any checkpoints may be evicted.
        """
        queue = self._tier.queue
        if self._tier.shared:
            return self._copies.make_room(self._tier, size)
        if size > queue.capacity:
            return False
        while queue.free < size:
            weakest = queue.weakest()
            if weakest is None or value_of(weakest) >= value_of(checkpoint):
                return False
            self._copies.evict(self._tier, weakest)
        return True


def value_of(checkpoint: Checkpoint) -> int:
    """Return the value of storing a checkpoint: the tokens that it saves, times one more than its hits."""
    return (1 + checkpoint.hits) * checkpoint.saves


class Copies:
    """Adds, moves and drops the copies of checkpoints' states in the tiers. For the thread that owns the device."""

    def __init__(self, tiers: Sequence[Tier], stats: CacheStats, on_lost: Callable[[Checkpoint], None]) -> None:
        """Manage the copies of states in `tiers`, ordered from the quickest to the slowest, and count moves in `stats`.

        `on_lost` is called with each checkpoint that has just lost its last copy, except by `drop`.
        """
        self.tiers = tuple(tiers)
        self.stats_of = {one.tier: one for one in stats.tiers}
        self._on_lost = on_lost
        self._moves: dict[Checkpoint, Move] = {}

    def move_of(self, checkpoint: Checkpoint) -> Move | None:
        """Return the running transfer of a checkpoint's copy to a tier, or None if there is none."""
        return self._moves.get(checkpoint)

    def quickest(self, checkpoint: Checkpoint) -> Tier:
        """Return the quickest tier that has a copy of `checkpoint`."""
        return next(tier for tier in self.tiers if tier.name in checkpoint.sizes)

    def touch(self, checkpoint: Checkpoint) -> None:
        """Update the worth of a checkpoint in the eviction queue of every tier that has a copy of it."""
        for tier in self.tiers:
            if tier.name in checkpoint.sizes:
                tier.queue.touch(checkpoint)

    def add(self, tier: Tier, checkpoint: Checkpoint, source: CopySource) -> bool:
        """Copy a checkpoint from `source` into a tier, now or in the background.

        Returns False if the tier does not want the checkpoint or can't make room for it.
        """
        if not tier.wants(checkpoint):
            return False
        make_room = partial(self.make_room, tier, for_waypoint=checkpoint.is_waypoint)
        expected = tier.copy_bytes(checkpoint)
        if tier.on_device:
            if source.slot is None or not make_room(expected):
                return False
            tier.save(checkpoint, source.slot, source.logits)
            return True
        if not make_room(expected):
            return False
        pending = source.start_read()
        if pending.done():
            return tier.put(checkpoint, pending.result(), make_room)
        assert checkpoint not in self._moves, "the checkpoint is already being moved"
        tier.queue.add(checkpoint, expected)
        self._moves[checkpoint] = Move(tier, source, pending)
        return True

    def promote(self, checkpoint: Checkpoint, tier: Tier, source: CopySource) -> None:
        """Copy a checkpoint from `source` to the quickest of the tiers that accept it and are quicker than `tier`."""
        for quicker in self.tiers[: self.tiers.index(tier)]:
            if self.add(quicker, checkpoint, source):
                self.stats_of[quicker.name].promotions += 1
                return

    def make_room(self, tier: Tier, size: int, *, for_waypoint: bool = False) -> bool:
        """Make room for `size` bytes in a tier, by evicting copies of checkpoints. Return False if that fails.

        `for_waypoint` is True if the room is for a waypoint.
        """
        queue = tier.queue
        if size > queue.capacity:
            return False
        while queue.free < size or (tier.is_crowded and not for_waypoint):
            weakest = queue.weakest_for_waypoint(size) if for_waypoint else queue.weakest()
            if weakest is None:
                return False
            self.evict(tier, weakest)
        return True

    def evict(self, tier: Tier, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint's copy from a tier, after copying it to a slower tier.

        It is not copied if a slower tier of this machine has a copy already.
        """
        self.stats_of[tier.name].evictions += 1
        move = self._moves.get(checkpoint)
        arriving = move is not None and move.tier is tier
        slower = self.tiers[self.tiers.index(tier) + 1 :]
        if arriving:
            del self._moves[checkpoint]
        if not any(other.name in checkpoint.sizes for other in slower if not other.shared):
            try:
                self._demote(checkpoint, slower, self._source(tier, checkpoint, move if arriving else None))
            except Exception:
                _log.exception("a copy of a state can't be read, so it is not moved to a slower tier")
        if arriving:
            tier.queue.remove(checkpoint)
        else:
            tier.drop(checkpoint)
        self.tell_if_lost(checkpoint)

    def drop(self, tier: Tier, checkpoint: Checkpoint) -> None:
        """Drop a tier's copy of a checkpoint without copying it elsewhere, even if it is still in transfer."""
        move = self._moves.get(checkpoint)
        if move is None or move.tier is not tier:
            tier.drop(checkpoint)
            return
        del self._moves[checkpoint]
        tier.queue.remove(checkpoint)

    def finish_moves(self, *, wait: bool) -> None:
        """Add the checkpoints' copies whose transfers have ended to the tiers that they were transferred to.

        With `wait`, wait for all transfers first.
        """
        for checkpoint, move in list(self._moves.items()):
            if (wait or move.pending.done()) and self._moves.get(checkpoint) is move:
                self.arrive(checkpoint)

    def arrive(self, checkpoint: Checkpoint) -> Payload | None:
        """Wait for the transfer of a checkpoint's copy, put the copy into its target tier, and return it.

        Returns None if the read failed or no transfer is in progress.
        """
        move = self._moves.pop(checkpoint, None)
        if move is None:
            return None
        move.tier.queue.remove(checkpoint)
        payload = None
        try:
            payload = move.pending.result()
        except Exception:
            _log.exception("a checkpoint is lost: its copy can't be read")
        try:
            make_room = partial(self.make_room, move.tier, for_waypoint=checkpoint.is_waypoint)
            if payload is not None and not move.tier.put(checkpoint, payload, make_room):
                slower = self.tiers[self.tiers.index(move.tier) + 1 :]
                self._demote(checkpoint, slower, CopySource(partial(ReadyPayload, payload), payload.logits))
        finally:
            self.tell_if_lost(checkpoint)
        return payload

    def lose_device(self) -> None:
        """Drop all copies of states on a failed device and those being read from it, without using the device."""
        for checkpoint, move in list(self._moves.items()):
            if not move.source.slow:
                self.drop(move.tier, checkpoint)
                self.tell_if_lost(checkpoint)
        for tier in self.tiers:
            for checkpoint in list(tier.queue) if tier.on_device else ():
                tier.drop(checkpoint)
                self.tell_if_lost(checkpoint)

    def tell_if_lost(self, checkpoint: Checkpoint) -> None:
        """Call the callback `on_lost` with a checkpoint if no tier has a copy of its state any more."""
        if not checkpoint.resumable:
            self._on_lost(checkpoint)

    def _source(self, tier: Tier, checkpoint: Checkpoint, move: Move | None) -> CopySource:
        if move is not None:
            return replace(move.source, start_read=lambda: move.pending)
        logits = None if tier.slow else tier.logits(checkpoint)
        return CopySource(partial(tier.start_read, checkpoint), logits, slow=tier.slow)

    def _demote(self, checkpoint: Checkpoint, slower: Sequence[Tier], source: CopySource) -> None:
        for tier in slower:
            if tier.name in checkpoint.sizes:
                return
            if self.add(tier, checkpoint, source):
                self.stats_of[tier.name].demotions += 1
                return
