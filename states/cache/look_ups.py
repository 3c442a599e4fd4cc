"""Looking up the longest kept prefix of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rnn_engine.types import F32
from states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason
from states.cache.counters import CacheStats
from states.cache.fetch import Fetch
from states.cache.positions import Positions
from states.cache.tiers.moves import Access
from states.cache.tiers.tiered import TieredStore
from states.payload import Payload
from states.tokens import pack


@dataclass(slots=True, eq=False)
class Match:
    """What a look-up found. Its checkpoint can't be evicted until the cache's `restore` or `release`."""

    length: int  # tokens of the prompt
    saved: int  # tokens that need not be run
    known: int  # tokens along which the prompt follows a known path: where it leaves is a branch point
    miss: MissReason | None  # why nothing was saved; None where something was
    tier: str | None  # the quickest tier that had the state
    logits: F32 | None  # [V] read-only: those after the last token, where the whole prompt was found
    checkpoint: Checkpoint | None = field(repr=False)
    fetched: Payload | None = field(repr=False)  # where the state is in no quick tier
    locked: bool = field(repr=False)


class LookUps:
    """Finds what a prompt can go on from, and counts what it found."""

    def __init__(self, positions: Positions, tiers: TieredStore, stats: CacheStats, clock: Callable[[], float]) -> None:
        """`stats` is kept up to date; `clock` is that of `Checkpoint.used`."""
        self._positions = positions
        self._tiers = tiers
        self._stats = stats
        self._clock = clock

    def best(self, root: str, tokens: Sequence[int], limit: int | None) -> Checkpoint | None:
        """Return the longest checkpoint from which a prompt can go on, whatever tier it lies in. Counts nothing."""
        tree = self._positions.tree(root)
        if tree is None:
            return None
        checkpoints = tree.follow(pack(tokens)).values_back()
        return next((one for one in checkpoints if self._obstacle(one, len(tokens), limit) is None), None)

    def find(self, root: str, tokens: Sequence[int], limit: int | None, fetch: Fetch | None) -> Match:
        """See `StateCache.look_up`."""
        self._stats.look_ups += 1
        self._stats.tokens_looked_up += len(tokens)
        tree = self._positions.tree(root)
        if tree is None:
            return self._missed(len(tokens), 0, MissReason.NO_PATHS)
        place = tree.follow(pack(tokens))
        reason = MissReason.NO_CHECKPOINT if place.length > 0 else MissReason.UNKNOWN_PROMPT
        for checkpoint in place.values_back():
            if not checkpoint.resumable:
                self._positions.touch_ghost(checkpoint)
            obstacle = self._obstacle(checkpoint, len(tokens), limit)
            if obstacle is not None:
                reason = _weightier(reason, obstacle)
                continue
            if self._tiers.access(checkpoint) is Access.AT_HAND:
                payload = self._tiers.payload(checkpoint)
                if not checkpoint.resumable:
                    return self._missed(len(tokens), place.length, MissReason.DAMAGED)
            elif fetch is None or (payload := fetch.payload_of(checkpoint)) is None:
                reason = _weightier(reason, MissReason.NOT_FETCHED)
                continue
            return self._hit(checkpoint, payload, len(tokens), place.length)
        return self._missed(len(tokens), place.length, reason)

    def _obstacle(self, checkpoint: Checkpoint, length: int, limit: int | None) -> MissReason | None:
        """Why a prompt of `length` tokens that passes a checkpoint can't go on from it; None where it can."""
        if not checkpoint.resumable:
            return checkpoint.absence
        if limit is not None and checkpoint.length > limit:
            return MissReason.BEYOND_LIMIT
        if checkpoint.length == length and not checkpoint.has_logits:
            return MissReason.NO_LOGITS
        return MissReason.NOT_FETCHED if self._tiers.access(checkpoint) is Access.MOVING else None

    def _hit(self, checkpoint: Checkpoint, fetched: Payload | None, length: int, known: int) -> Match:
        tier = self._tiers.quickest(checkpoint)
        exact = checkpoint.length == length
        self._tiers.upgrade(checkpoint, CheckpointKind.BRANCH)
        checkpoint.hits += 1
        checkpoint.used = self._clock()
        checkpoint.locks += 1
        checkpoint.saves = checkpoint.tokens_to_shorter()
        self._tiers.touch(checkpoint)
        self._stats.hits += 1
        self._stats.exact_hits += exact
        self._stats.tokens_saved += checkpoint.length
        logits = self._tiers.logits(checkpoint, fetched) if exact else None
        self._stats.tiers[self._tiers.tiers.index(tier)].hits += 1
        return Match(length, checkpoint.length, known, None, tier.name, logits, checkpoint, fetched, True)

    def _missed(self, length: int, known: int, reason: MissReason) -> Match:
        self._stats.misses[reason] += 1
        return Match(length, 0, known, reason, None, None, None, None, False)


_LIGHTEST_FIRST = list(MissReason)


def _weightier(first: MissReason, second: MissReason) -> MissReason:
    return max(first, second, key=_LIGHTEST_FIRST.index)
