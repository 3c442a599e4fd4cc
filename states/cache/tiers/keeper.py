"""Bringing checkpoints to a slow tier before they have to give way in a quicker one: seconds later, and at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from states.cache.checkpoint import Checkpoint
from states.cache.tiers.copies import Copies
from states.cache.tiers.tier import PendingPayload, Tier
from states.cache.tiers.write_behind import WriteBehind
from states.payload import Payload

_log = logging.getLogger(__name__)


class Keeper:
    """Brings copies to one slow tier. For the thread that owns the device; only `is_idle` may be asked on others."""

    def __init__(self, tier: Tier, copies: Copies, clock: Callable[[], float]) -> None:
        self._tier = tier
        self._copies = copies
        self._behind = WriteBehind(tier.write_after, clock)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return self._behind.is_idle

    def note(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint written when it is old enough, where the tier lacks it."""
        if self._lacks(checkpoint):
            self._behind.note(checkpoint)

    def run(self) -> None:
        """Write what is old enough, as far as it fits. Does not wait."""
        self._behind.run(self._read, self._write)

    def flush(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Write the first of `checkpoints` that quick tiers alone have, as many as fit; wait until they are taken."""
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
                _log.warning("a checkpoint is lost: it can't be read at the end: %s", error)
                continue
            if not tier.put(checkpoint, payload, make_room, wait=True):
                return

    def _lacks(self, checkpoint: Checkpoint) -> bool:
        tier = self._tier
        return checkpoint.resumable and tier.name not in checkpoint.sizes and tier.wants(checkpoint)

    def _read(self, checkpoint: Checkpoint) -> PendingPayload | None:
        if not self._lacks(checkpoint):
            return None
        if self._copies.move_of(checkpoint) is not None or not self._tier.is_ready:
            self._behind.note(checkpoint)
            return None
        return self._copies.quickest(checkpoint).start_read(checkpoint)

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
            self._behind.note(checkpoint)  # the writer is too far behind

    def _make_room_for(self, checkpoint: Checkpoint, size: int) -> bool:
        """Make room in the tier, where only what is worth less than `checkpoint` gives way, if that loses a copy."""
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
    """How much a checkpoint has saved and saves."""
    return (1 + checkpoint.hits) * checkpoint.saves
