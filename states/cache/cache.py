"""The cache of recurrent states: from token prefixes to checkpoints in tiers.

How a scheduler uses it, all on the thread that owns the runner:

    inquiry = cache.inquire(root, prompt, on_done=wake)  # where not None, wait until inquiry.done; then learn(inquiry)
    fetch = cache.prefetch(root, prompt, on_done=wake)  # where not None, wait until fetch.done
    match = cache.look_up(root, prompt, fetch=fetch)    # locks what it found; then release the fetch
    cache.restore(match, slot)                          # or, where match.saved is 0, write the initial state
    run the prompt, and where a state is worth keeping (scheduler/checkpoints.py says where):
    cache.insert(root, prompt[:position], slot, kind=kind, logits=row or None)
    decode; at the end of the generation, the last token drawn not being run yet:
    cache.insert(root, prompt + run, slot, kind=CheckpointKind.GENERATION_END, logits=row)

Where `match.logits` is not None the whole prompt was found, and its next token is drawn from these logits without a
forward pass. A match that is not restored is given back by `release`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rnn_engine.types import F32
from states.cache.browse import CacheSummary
from states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason, is_of_state, is_within
from states.cache.config import CacheConfig, CacheStats, TierStats
from states.cache.positions import Index, Positions
from states.cache.tiers.shared import Inquiry, SharedTier
from states.cache.tiers.tier import Access, DevicePool, LiveStates, Tier
from states.cache.tiers.tiered import Fetch, TieredStore
from states.frozen import Payload
from states.tokens import TOKEN_BYTES, pack, unpack


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


class StateCache:
    """One model's cache. For the thread that owns the device; only `stats` may be called on others."""

    def __init__(
        self,
        live: LiveStates,
        tiers: Sequence[Tier],
        config: CacheConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tiers` are ordered from the quickest to the slowest, see `states.cache.upkeep`.

        Takes in what earlier processes left in slow tiers.
        """
        self._positions = Positions(config.max_mark_tokens, clock)
        self._stats = CacheStats(tuple(TierStats(tier.name, tier.queue.capacity) for tier in tiers))
        self._tiers = TieredStore(live, tiers, self._stats, self._positions.become_ghost, config, clock)
        self._clock = clock
        self._shared = next((tier for tier in tiers if isinstance(tier, SharedTier)), None)
        self._look_ups = LookUps(self._positions, self._tiers, self._stats, clock)
        on_device = sum(tier.queue.capacity for tier in tiers if tier.on_device)
        self._index = Index(self._positions, self._tiers, config.index_bytes(on_device))
        for tier in tiers:
            self._index.adopt_copies(tier)

    def inquire(
        self, root: str, tokens: Sequence[int], limit: int | None = None, *, on_done: Callable[[], None]
    ) -> Inquiry | None:
        """Begin to ask whether other servers have kept more of a prompt; None where there is nobody to be asked, or
        where that would save too little. See `prefetch` for `on_done`. What was found is taken in by `learn`."""
        tier = self._shared
        if tier is None:
            return None
        shortest = self.peek(root, tokens, limit) + tier.min_tokens
        longest = len(tokens) if limit is None else min(limit, len(tokens))
        if longest < shortest:
            return None
        return tier.inquire(root, pack(tokens), shortest, longest, on_done)

    def learn(self, inquiry: Inquiry) -> None:
        """Take in what an inquiry that is done has found, so that `prefetch` finds it. Does nothing the second time."""
        answer = inquiry.take()
        if answer is None or self._shared is None:
            return
        found = answer.found
        if found is not None and not self._index.is_too_long(found.tokens):
            self._index.adopt(self._shared, found)
        self._learn_path(answer.root, answer.known)

    def _learn_path(self, root: str, tokens: bytes) -> None:
        """Take in that the path of another server leads along `tokens`, so that prompts that leave it branch there."""
        if not tokens or self._index.is_too_long(tokens):
            return
        tree = self._positions.tree(root)
        if tree is None or tree.follow(tokens).length * TOKEN_BYTES < len(tokens):
            self._positions.become_ghost(self._positions.record(root, tokens, CheckpointKind.BRANCH))
            self._index.trim()

    def prefetch(
        self, root: str, tokens: Sequence[int], limit: int | None = None, *, on_done: Callable[[], None]
    ) -> Fetch | None:
        """Begin to read the checkpoint that `look_up` would find best, where it lies in a slow tier alone; else None.

        Look up when the fetch is done; where it has failed, call this again, for the next best may have to be read.
        Release the fetch then, or whenever the request leaves; it locks the checkpoint meanwhile. `on_done` is called
        when the read has ended, mostly on the thread that reads, but not where the returned fetch was done already.
        """
        if not self._tiers.any_slow:
            return None
        self._tiers.settle()
        checkpoint = self._look_ups.best(root, tokens, limit)
        if checkpoint is None or self._tiers.access(checkpoint) is not Access.SLOW:
            return None
        return self._tiers.start_fetch(checkpoint, on_done)

    def look_up(
        self, root: str, tokens: Sequence[int], limit: int | None = None, *, fetch: Fetch | None = None
    ) -> Match:
        """The longest prefix of `tokens`, of at most `limit` tokens where given, from which a sequence can go on.

        A checkpoint at the very end serves only where its logits were kept, for otherwise a token must be run to have
        any. One that lies in a slow tier alone serves only where `fetch` has brought it: this never waits for a file.
        """
        self._tiers.settle()
        return self._look_ups.find(root, tokens, limit, fetch)

    def peek(self, root: str, tokens: Sequence[int], limit: int | None = None) -> int:
        """How many tokens `look_up` would save after `prefetch`. Counts nothing, locks nothing, reads no file."""
        self._tiers.settle()
        checkpoint = self._look_ups.best(root, tokens, limit)
        return 0 if checkpoint is None else checkpoint.length

    def continuation(self, root: str, tokens: Sequence[int], count: int) -> list[int]:
        """The tokens that followed `tokens` when they were last asked for under `root`, at most `count`, if any.

        Of paths alone, whether or not their states are still kept: counts nothing, locks nothing, reads no file.
        """
        return unpack(self._positions.continuation(root, pack(tokens), count))

    def restore(self, match: Match, slot: int) -> None:
        """Make the state that was found live in `slot`, promote it to the quickest tier, and release the match."""
        if match.checkpoint is None or not match.locked:
            raise ValueError(f"nothing to restore: {match}")
        try:
            self._tiers.load(match.checkpoint, slot, match.fetched)
        finally:
            self.release(match)
            self._index.trim()

    def release(self, match: Match) -> None:
        """Let what was found be evicted again. Does nothing for a miss or for a match that was released before."""
        if match.checkpoint is not None and match.locked:
            match.locked = False
            match.fetched = None
            match.checkpoint.locks -= 1
            self._tiers.touch(match.checkpoint)

    def insert(
        self,
        root: str,
        tokens: Sequence[int],
        slot: int,
        *,
        kind: CheckpointKind,
        logits: F32 | None = None,  # [V] those after the last token
    ) -> bool:
        """Keep a copy of the live state of `slot`, which has run exactly `tokens`; the path is known from now on.

        False where no tier had room. Where these tokens have a checkpoint already, it stays, unless it lacks logits
        that are given now. A waypoint that was used, or is inserted as another `kind`, is one no longer.
        """
        if len(tokens) == 0:
            raise ValueError("tokens: an empty path has no checkpoint; expected at least one token")
        self._tiers.settle()
        packed = pack(tokens)
        if self._index.is_too_long(packed):
            self._stats.not_stored += 1
            return False
        checkpoint = self._positions.record(root, packed, kind)
        checkpoint.used = self._clock()
        if checkpoint.resumable and (logits is None or checkpoint.has_logits or checkpoint.locks > 0):
            self._tiers.upgrade(checkpoint, kind)
            self._tiers.touch(checkpoint)
            return True
        self._tiers.drop(checkpoint)
        self._positions.leave_ghosts(checkpoint)
        checkpoint.kind = kind
        checkpoint.saves = checkpoint.tokens_to_shorter()
        try:
            stored = self._tiers.save(checkpoint, slot, None if logits is None else _kept(logits))
        finally:
            if not checkpoint.resumable:
                self._positions.become_ghost(checkpoint)
        if stored:
            checkpoint.absence = MissReason.EVICTED
            self._positions.note_kept(checkpoint)
        self._index.trim()
        return stored and checkpoint.resumable

    def drop_state(self, initial_state: str) -> int:
        """Forget all checkpoints of an initial state, in every scope, but the locked ones; returns how many went."""
        return self._drop_all(self._positions.under(lambda root: is_of_state(root, initial_state)))

    def drop_all(self) -> int:
        """Forget everything but the locked checkpoints; returns how many positions, ghost entries included, went."""
        return self._drop_all(list(self._positions))

    def drop_position(self, position: str) -> bool:
        """Forget the position with this id; False where it is locked. Raises NotFoundError."""
        checkpoint = self.find_position(position)
        return self._drop_all([checkpoint]) == 1

    def summarise(self) -> None:
        """Begin to keep a `summary`, which tells others what is kept. Does nothing the second time."""
        self._positions.summarise()

    @property
    def summary(self) -> CacheSummary | None:
        """None before `summarise`."""
        return self._positions.summary

    def lose_device(self) -> None:
        """Forget the states on the device, and those on their way from it: it has failed."""
        self._tiers.lose_device()

    def use_device(self, live: LiveStates, pool: DevicePool) -> None:
        """Go on with other slots after `lose_device`. `pool` serves where the cache has kept states on the device."""
        self._tiers.use_device(live, pool)

    def checkpoints(self, scope: str | None = None) -> list[Checkpoint]:
        """Every known position, ghost entries included, or those of a scope. Read-only; see `states.cache.browse`
        and `states.cache.browse`."""
        return self._positions.under(lambda root: scope is None or is_within(root, scope))

    def find_position(self, position: str) -> Checkpoint:
        """The position with this id. Raises NotFoundError."""
        return self._positions.find(position)

    def now(self) -> float:
        """This moment, by the clock of `Checkpoint.used`."""
        return self._clock()

    def stats(self) -> CacheStats:
        """The counts and sizes of this moment. Thread-safe; single numbers may be from neighbouring moments."""
        tiers = self._tiers.tiers
        return replace(
            self._stats,
            misses=dict(self._stats.misses),
            writes_refused=sum(tier.writes_refused for tier in tiers),
            failed_writes=sum(tier.failed_writes for tier in tiers),
            checkpoints=self._positions.num_checkpoints,
            ghosts=self._positions.num_ghosts,
            device_logits_bytes=sum(tier.logits_bytes for tier in tiers),
            index_bytes=self._index.num_bytes,
            index_capacity=self._index.capacity,
            store=None if self._shared is None else self._shared.counters(),
            tiers=tuple(
                replace(stats, capacity=tier.queue.capacity, used=tier.queue.used, copies=len(tier.queue))
                for stats, tier in zip(self._stats.tiers, tiers, strict=True)
            ),
        )

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers, the quickest first."""
        return self._tiers.tiers

    @property
    def any_slow(self) -> bool:
        """Whether there is a tier that outlives the process."""
        return self._tiers.any_slow

    @property
    def has_unwritten(self) -> bool:
        """Whether `write_behind` is to be called now and then. May be asked on any thread."""
        return self._tiers.has_unwritten

    def write_behind(self) -> None:
        """Bring checkpoints that are old enough to a slow tier, a few at a time and without waiting."""
        self._tiers.write_behind()
        self._index.trim()

    def close(self) -> None:
        """Bring the most valuable checkpoints to the quickest slow tier, where there is one, and close all tiers."""
        self._tiers.flush()
        self._tiers.close()

    def _drop_all(self, checkpoints: Sequence[Checkpoint]) -> int:
        """Forget those that are not locked; return how many they are."""
        going = [checkpoint for checkpoint in checkpoints if checkpoint.locks == 0]
        for checkpoint in going:
            self._tiers.drop(checkpoint)
            self._positions.forget(checkpoint)
        return len(going)


def _kept(logits: F32) -> F32:
    kept = np.array(logits, np.float32)
    kept.setflags(write=False)
    return kept
