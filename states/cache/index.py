"""The index of a cache: what is known of token paths and copies, within a bound on host memory."""

from __future__ import annotations

from states.cache.checkpoint import MissReason
from states.cache.eviction import WAYPOINT_SHARE
from states.cache.positions import Positions
from states.cache.tiers.tier import FoundCopy, Tier
from states.cache.tiers.tiered import TieredStore


class Index:
    """Forgets what is least missed while the records of all that is known take more than `capacity`.

    Waypoints go first while they take more than their share, then ghost entries, then what is known of a shared store,
    then other checkpoints.
    """

    def __init__(self, positions: Positions, tiers: TieredStore, capacity: int) -> None:
        """`capacity` is in bytes."""
        self._positions = positions
        self._tiers = tiers
        self.capacity = capacity

    @property
    def num_bytes(self) -> int:
        """An estimate of what paths, records of copies, and the logits of copies on the device take."""
        logits = sum(tier.logits_bytes for tier in self._tiers.tiers)
        return self._positions.num_bytes + _COPY_BYTES * self._tiers.num_copies + logits

    def is_too_long(self, tokens: bytes) -> bool:
        """Whether packed tokens have no room, even alone."""
        return self._positions.cost(tokens) + _COPY_BYTES > self.capacity

    def trim(self) -> None:
        """Forget what was unused for longest until the bound holds, or all that is left is locked."""
        while self.num_bytes > self.capacity:
            spared = _WAYPOINT_BYTES * self._tiers.num_waypoints <= WAYPOINT_SHARE * self.capacity
            if not spared and self._forget(waypoints=True):
                continue
            if self._positions.forget_oldest_ghost() or self._forget(waypoints=False):
                continue
            if not self._forget(waypoints=True):
                return

    def _forget(self, *, waypoints: bool) -> bool:
        evicted = self._tiers.evict(waypoints=waypoints)
        if evicted is not None and not evicted.resumable:
            self._positions.forget(evicted)
        return evicted is not None

    def adopt_copies(self, tier: Tier) -> None:
        """Take in what an earlier process left in a tier, as much as has room there and here; delete the rest."""
        copies = tier.find_copies()
        excess = sum(found.num_bytes for found in copies) - tier.queue.capacity
        for found in copies:
            if excess > 0 or self.is_too_long(found.tokens):
                excess -= found.num_bytes
                tier.discard(found)
                continue
            self.adopt(tier, found)

    def adopt(self, tier: Tier, found: FoundCopy) -> None:
        """Take in one copy if its position has none and the tier makes room for it, else the path to it alone."""
        checkpoint = self._positions.record(found.root, found.tokens, found.kind)
        if checkpoint.resumable:
            return
        self._positions.leave_ghosts(checkpoint)
        adopted = False
        try:
            checkpoint.has_logits = found.has_logits
            checkpoint.saves = checkpoint.tokens_to_shorter()
            adopted = self._tiers.adopt(tier, checkpoint, found)
        finally:
            if not adopted:
                self._positions.become_ghost(checkpoint)
        if adopted:
            checkpoint.absence = MissReason.EVICTED
            self._positions.note_kept(checkpoint)
        self.trim()


_COPY_BYTES = 1000  # an estimate of what a tier's records of one copy take
_WAYPOINT_BYTES = 2600  # of one waypoint: of its copy, its record and its place in the tree
