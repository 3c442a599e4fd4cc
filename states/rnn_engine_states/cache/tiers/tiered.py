"""`TieredStore`: the copies of states in all tiers of the cache.

A checkpoint may have copies in several tiers. Before a copy is evicted, the next tier that accepts it gets a copy,
unless a slower tier of this machine has one already. A hit copies the checkpoint to a quicker tier and keeps the slower
copies, so that the quick copy can later be evicted without a transfer. Locked checkpoints keep all their copies.

A copy that must be read first, from the device or from a slow tier, moves in the background. From the start of the read
the target tier's queue counts it, and it is put there when it has arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

from rnn_engine.errors import StateError
from rnn_engine.types import F32
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason
from rnn_engine_states.cache.config import CacheConfig, CacheStats
from rnn_engine_states.cache.tiers.fetches import Fetch, Fetches
from rnn_engine_states.cache.tiers.tier import (
    Access,
    CopySource,
    DevicePayload,
    DeviceTier,
    FoundCopy,
    LiveStates,
    Move,
    PendingPayload,
    SlotPool,
    Tier,
    ready,
)
from rnn_engine_states.frozen import Payload

MOST_READS = 4  # at a time: each has a copy in host memory, and reads from the device take device time

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
        """Store states in `tiers`, quickest first; `on_lost` is called with each that loses its last copy."""
        self.tiers = tuple(tiers)
        self._live = live
        self._stats = stats
        self._stats_of = {one.tier: one for one in stats.tiers}
        self._on_lost = on_lost
        self._moves: dict[Checkpoint, Move] = {}
        self._fetches = Fetches(config.fetch_capacity, partial(_touch, self.tiers))
        self._keepers = tuple(Keeper(tier, clock) for tier in self.tiers if tier.slow)
        self.any_slow = bool(self._keepers)

    def save(self, checkpoint: Checkpoint, slot: int, logits: F32 | None) -> bool:
        """Store the live state of `slot` in the quickest tier that has or makes room. Return False if none does."""
        checkpoint.has_logits = logits is not None
        source = CopySource(lambda: DevicePayload(self._live.start_read(slot), logits), logits, slot)
        for tier in self.tiers:
            if self._add(tier, checkpoint, source):
                self._stats_of[tier.name].stored += 1
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
        move = self.move_of(checkpoint)
        if move is not None:
            return Access.MOVING if move.source.slow else Access.AT_HAND
        holders = [tier for tier in self.tiers if tier.name in checkpoint.sizes]
        at_hand = any(not tier.slow or tier.get(checkpoint) is not None for tier in holders)
        return Access.AT_HAND if at_hand else Access.SLOW

    def move_of(self, checkpoint: Checkpoint) -> Move | None:
        """Return the running transfer of a checkpoint's copy to a tier, or None if there is none."""
        return self._moves.get(checkpoint)

    def quickest(self, checkpoint: Checkpoint) -> Tier:
        return next(tier for tier in self.tiers if tier.name in checkpoint.sizes)

    def start_fetch(self, checkpoint: Checkpoint, on_done: Callable[[], None], owner: Hashable) -> Fetch:
        """Start to read what only a slow tier has; `settle` drops a damaged copy. See `Fetches.begin`."""
        tier = self.quickest(checkpoint)
        return self._fetches.begin(
            checkpoint, checkpoint.sizes[tier.name], lambda: tier.start_fetch(checkpoint), on_done, owner
        )

    def payload(self, checkpoint: Checkpoint) -> Payload | None:
        """Return the copy of a checkpoint that waits to be written to a slow tier, if no quick tier has a copy.

        Else return None. The caller must keep the copy, since it leaves memory once it is written. If the checkpoint is
        in transfer to the slow tier, waits for the transfer; if that fails, the checkpoint is lost.
        """
        move = self.move_of(checkpoint)
        tier = self.quickest(checkpoint)
        if not tier.slow:
            return None
        if move is None:
            return tier.get(checkpoint)
        return self._arrive(checkpoint)

    def logits(self, checkpoint: Checkpoint, fetched: Payload | None) -> F32 | None:
        """Return the last logits of a checkpoint: those in `fetched`, or those of a copy that can be used at once."""
        if fetched is not None:
            return fetched.logits
        move = self.move_of(checkpoint)
        return self.quickest(checkpoint).logits(checkpoint) if move is None else move.source.logits

    def load(self, checkpoint: Checkpoint, slot: int, fetched: Payload | None) -> None:
        """Load a state into `slot`, and copy it to a quicker tier. Raises StateError if its copy is lost."""
        payload = fetched or self._arrive(checkpoint)
        tier = self.quickest(checkpoint) if checkpoint.resumable else None
        if isinstance(tier, DeviceTier):
            tier.load(checkpoint, slot)
            return
        if payload is None and tier is not None:
            payload = tier.get(checkpoint)
        if payload is None:
            raise StateError("the copy of a state was lost before it was used")
        self._live.write_state(slot, payload.expand())
        if tier is not None:
            self._promote(checkpoint, tier, CopySource(partial(ready, payload), payload.logits, slot))

    def touch(self, checkpoint: Checkpoint) -> None:
        """Update the worth of a checkpoint in the eviction queue of every tier that has a copy of it."""
        _touch(self.tiers, checkpoint)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Remove all copies of a checkpoint from the tiers, without reporting it as lost."""
        for tier in self.tiers:
            if tier.name in checkpoint.sizes:
                self._drop_copy(tier, checkpoint)

    @property
    def num_copies(self) -> int:
        return sum(len(tier.queue) for tier in self.tiers)

    @property
    def num_waypoints(self) -> int:
        return sum(tier.queue.num_waypoints for tier in self.tiers)

    def adopt(self, tier: Tier, checkpoint: Checkpoint, found: FoundCopy) -> bool:
        """Register a copy found in a tier; return False if there is no room for it."""
        if not self.make_room(tier, found.num_bytes):
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
            weakest = tier.queue.weakest(waypoints=waypoints)
            if weakest is not None:
                self._stats_of[tier.name].evictions += 1
                if tier.shared:
                    self._drop_copy(tier, weakest)
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
        self._finish_moves(wait=False)

    def lose_device(self) -> None:
        """Drop all copies of states on a failed device and those being read from it, without using the device."""
        for checkpoint, move in list(self._moves.items()):
            if not move.source.slow:
                self._drop_copy(move.tier, checkpoint)
                self._tell_if_lost(checkpoint)
        for tier in self.tiers:
            for checkpoint in list(tier.queue) if isinstance(tier, DeviceTier) else ():
                tier.drop(checkpoint)
                self._tell_if_lost(checkpoint)

    def use_device(self, live: LiveStates, pool: SlotPool) -> None:
        """Continue with other slots and slabs. The tier on the device must be empty."""
        self._live = live
        for tier in self.tiers:
            if isinstance(tier, DeviceTier):
                tier.use_pool(pool)

    def flush(self) -> None:
        """Write to each slow tier the most valuable checkpoints that it lacks, as many as fit. Waits for the reads."""
        self._finish_moves(wait=True)
        by_value = sorted({one for tier in self.tiers for one in tier.queue}, key=value_of, reverse=True)
        for keeper in self._keepers:
            keeper.flush(self, by_value)
        self._finish_moves(wait=True)

    def write_behind(self) -> None:
        """Write to the slow tiers the checkpoints that have reached the configured age, as many as fit."""
        self.settle()
        for keeper in self._keepers:
            keeper.run(self)

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
        self._drop_copy(tier, checkpoint)
        if not checkpoint.resumable:
            checkpoint.absence = MissReason.DAMAGED
        else:
            self._note_unwritten(checkpoint)
        self._tell_if_lost(checkpoint)

    def _note_unwritten(self, checkpoint: Checkpoint) -> None:
        for keeper in self._keepers:
            keeper.note(checkpoint)

    # How copies are added, moved and dropped

    def _add(self, tier: Tier, checkpoint: Checkpoint, source: CopySource) -> bool:
        """Copy a checkpoint into a tier, perhaps later; return False if it is not wanted or has no room."""
        if not tier.wants(checkpoint):
            return False
        make_room = partial(self.make_room, tier, for_waypoint=checkpoint.is_waypoint)
        expected = tier.copy_bytes(checkpoint)
        if isinstance(tier, DeviceTier):
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

    def _promote(self, checkpoint: Checkpoint, tier: Tier, source: CopySource) -> None:
        """Copy a checkpoint from `source` to the quickest of the tiers that accept it and are quicker than `tier`."""
        for quicker in self.tiers[: self.tiers.index(tier)]:
            if self._add(quicker, checkpoint, source):
                self._stats_of[quicker.name].promotions += 1
                return

    def make_room(self, tier: Tier, size: int, *, for_waypoint: bool = False) -> bool:
        """Evict copies until a tier has room for `size` bytes, perhaps of a waypoint; return False if that fails."""
        queue = tier.queue
        if size > queue.capacity:
            return False
        while queue.free < size or (tier.is_crowded and not for_waypoint):
            weakest = queue.weakest_for_waypoint(size) if for_waypoint else queue.weakest()
            if weakest is None:
                return False
            self.evict_copy(tier, weakest)
        return True

    def evict_copy(self, tier: Tier, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint's copy from a tier, after copying it to a slower tier.

        It is not copied if a slower tier of this machine has a copy already.
        """
        self._stats_of[tier.name].evictions += 1
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
        self._tell_if_lost(checkpoint)

    def _drop_copy(self, tier: Tier, checkpoint: Checkpoint) -> None:
        """Drop a tier's copy of a checkpoint without copying it elsewhere, even if it is still in transfer."""
        move = self._moves.get(checkpoint)
        if move is None or move.tier is not tier:
            tier.drop(checkpoint)
            return
        del self._moves[checkpoint]
        tier.queue.remove(checkpoint)

    def _finish_moves(self, *, wait: bool) -> None:
        """Add copies whose transfers have ended, with `wait` all, to the tiers that they go to."""
        for checkpoint, move in list(self._moves.items()):
            if (wait or move.pending.done()) and self._moves.get(checkpoint) is move:
                self._arrive(checkpoint)

    def _arrive(self, checkpoint: Checkpoint) -> Payload | None:
        """Wait for a copy in transfer, put it into its tier and return it; None if that failed or there is none."""
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
                self._demote(checkpoint, slower, CopySource(partial(ready, payload), payload.logits))
        finally:
            self._tell_if_lost(checkpoint)
        return payload

    def _tell_if_lost(self, checkpoint: Checkpoint) -> None:
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
            if self._add(tier, checkpoint, source):
                self._stats_of[tier.name].demotions += 1
                return


class Keeper:
    """Writes checkpoints to one slow tier at a certain age, before they are evicted from quicker tiers.

    So a crash loses only the checkpoints of the last seconds, and not all those in memory. For the thread that owns the
    device; `is_idle` may be read on any thread.
    """

    def __init__(self, tier: Tier, clock: Callable[[], float]) -> None:
        self._tier = tier
        self._clock = clock
        self._since: dict[Checkpoint, float] = {}  # when `note` was called; the earliest first
        self._reads: dict[Checkpoint, PendingPayload] = {}

    @property
    def is_idle(self) -> bool:
        return not self._since and not self._reads

    def note(self, checkpoint: Checkpoint) -> None:
        """Schedule a checkpoint to be written to the slow tier once it is old enough, if the tier has no copy of it."""
        if self._lacks(checkpoint):
            self._since.setdefault(checkpoint, self._clock())

    def run(self, store: TieredStore) -> None:
        """Start to read checkpoints that are old enough, and write those that were read, without waiting."""
        for checkpoint, pending in list(self._reads.items()):
            if pending.done():
                del self._reads[checkpoint]
                try:
                    payload = pending.result()
                except Exception as error:
                    _log.warning("a checkpoint is not written to disk: its copy can't be read: %s", error)
                else:
                    self._write(store, checkpoint, payload)
        for checkpoint, since in list(self._since.items()):
            if self._clock() - since < self._tier.write_after or len(self._reads) >= MOST_READS:
                return
            del self._since[checkpoint]
            if store.move_of(checkpoint) is not None or not self._tier.is_ready:
                self.note(checkpoint)
            elif self._lacks(checkpoint):
                self._reads[checkpoint] = store.quickest(checkpoint).start_read(checkpoint)

    def flush(self, store: TieredStore, checkpoints: Sequence[Checkpoint]) -> None:
        """Write to the slow tier those checkpoints that no slow tier has, as many as fit, waiting for it."""
        tier, budget = self._tier, self._tier.queue.capacity

        def make_room(size: int) -> bool:
            nonlocal budget
            budget -= size
            return budget >= 0 and store.make_room(tier, size)

        for checkpoint in checkpoints:
            budget -= checkpoint.sizes.get(tier.name, 0)
            if not self._lacks(checkpoint) or store.quickest(checkpoint).slow:
                continue
            try:
                payload = store.quickest(checkpoint).start_read(checkpoint).result()
            except Exception as error:
                _log.warning("a checkpoint is lost: it can't be read while the cache closes: %s", error)
                continue
            if not tier.put(checkpoint, payload, make_room, wait=True):
                return

    def _lacks(self, checkpoint: Checkpoint) -> bool:
        tier = self._tier
        return checkpoint.resumable and tier.name not in checkpoint.sizes and tier.wants(checkpoint)

    def _write(self, store: TieredStore, checkpoint: Checkpoint, payload: Payload) -> None:
        if not self._lacks(checkpoint):
            return
        fits = True

        def make_room(size: int) -> bool:
            nonlocal fits
            fits = self._make_room_for(store, checkpoint, size)
            return fits

        changed = store.move_of(checkpoint) is not None or (payload.logits is not None) != checkpoint.has_logits
        if (changed or not self._tier.put(checkpoint, payload, make_room)) and fits:
            self.note(checkpoint)  # the writer is too far behind

    def _make_room_for(self, store: TieredStore, checkpoint: Checkpoint, size: int) -> bool:
        """Evict checkpoints of less value than `checkpoint` from the slow tier, until it has `size` free bytes.

        Return False if that fails. In a shared tier, any checkpoints may be evicted.
        """
        queue = self._tier.queue
        if self._tier.shared:
            return store.make_room(self._tier, size)
        if size > queue.capacity:
            return False
        while queue.free < size:
            weakest = queue.weakest()
            if weakest is None or value_of(weakest) >= value_of(checkpoint):
                return False
            store.evict_copy(self._tier, weakest)
        return True


def _touch(tiers: Sequence[Tier], checkpoint: Checkpoint) -> None:
    for tier in tiers:
        if tier.name in checkpoint.sizes:
            tier.queue.touch(checkpoint)


def value_of(checkpoint: Checkpoint) -> int:
    """Return the value of storing a checkpoint: the tokens that it saves, times one more than its hits."""
    return (1 + checkpoint.hits) * checkpoint.saves
