"""The cache of recurrent states, which maps token prefixes to checkpoints in tiers.

How a scheduler uses it, all on the thread that owns the runner:

    inquiry = cache.inquire(root, prompt, on_done=wake)  # if not None, wait until inquiry.done and call learn(inquiry).
    fetch = cache.prefetch(root, prompt, on_done=wake)  # if not None, wait until fetch.done.
    match = cache.look_up(root, prompt, fetch=fetch)    # locks the checkpoint. Release the fetch afterwards.
    cache.restore(match, slot)                          # if match.saved is 0, write the initial state instead.
    run the prompt, and at each position that is worth keeping (see scheduler/checkpoints.py):
    cache.insert(root, prompt[:position], slot, kind=kind, logits=row or None)
    decode, and at the end of the generation, before the last drawn token is run:
    cache.insert(root, prompt + run, slot, kind=CheckpointKind.GENERATION_END, logits=row)

If `match.logits` is not None, the whole prompt was found, and its next token is drawn from these logits without a
forward pass. Pass a match that is not restored to `release`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from rnn_engine.types import F32, ModelShape
from rnn_engine_states.cache.browse import CacheSummary, SummaryChanges
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason, is_of_state, is_within
from rnn_engine_states.cache.config import CacheConfig, CacheStats, TierStats
from rnn_engine_states.cache.positions import Index, Positions
from rnn_engine_states.cache.tiers.disk import DiskTier
from rnn_engine_states.cache.tiers.fetches import Fetch
from rnn_engine_states.cache.tiers.shared import Inquiry, SharedTier
from rnn_engine_states.cache.tiers.tier import Access, DeviceTier, HostTier, LiveStates, SlotPool, Tier
from rnn_engine_states.cache.tiers.tiered import TieredStore
from rnn_engine_states.frozen import Payload
from rnn_engine_states.shared.config import OpenStore
from rnn_engine_states.tokens import TOKEN_BYTES, pack, unpack


@dataclass(slots=True, eq=False)
class Match:
    """A prompt's longest usable checkpoint, locked until `restore` or `release`, or why there is none."""

    length: int  # tokens of the prompt
    saved: int  # tokens that need not be run
    known: int  # tokens that the prompt shares with a known path; its end is a branch point
    miss: MissReason | None  # why nothing was saved; None if something was
    tier: str | None  # the quickest tier that had the state
    logits: F32 | None  # [V] read-only: those after the last token, if the whole prompt was found
    checkpoint: Checkpoint | None = field(repr=False)
    fetched: Payload | None = field(repr=False)  # the state, if no quick tier has it
    locked: bool = field(repr=False)


_LIGHTEST_FIRST = list(MissReason)
_WRITE_BEHIND_SECONDS = 1.0  # between two searches for states that are old enough to be written
logger = logging.getLogger(__name__)


def _weightier(first: MissReason, second: MissReason) -> MissReason:
    return max(first, second, key=_LIGHTEST_FIRST.index)


class StateCache:
    """The cache of one model's states, which stores and finds checkpoints by token prefix.

    For the thread that owns the device, except methods that say otherwise.
    """

    def __init__(
        self, live: LiveStates, tiers: Sequence[Tier], config: CacheConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make a cache that stores states in `tiers`, which are ordered from the quickest to the slowest.

        `upkeep` makes the tiers. `live` reads and writes the slots' states. Adds the checkpoints that earlier
        processes left in slow tiers.
        """
        self._positions = Positions(config.max_mark_tokens, clock)
        self._stats = CacheStats(tuple(TierStats(tier.name, tier.queue.capacity) for tier in tiers))
        self._tiers = TieredStore(live, tiers, self._stats, self._positions.become_ghost, config, clock)
        self._shared = next((tier for tier in tiers if isinstance(tier, SharedTier)), None)
        on_device = sum(tier.queue.capacity for tier in tiers if isinstance(tier, DeviceTier))
        self._index = Index(self._positions, self._tiers, config.index_bytes(on_device))
        for tier in tiers:
            self._index.adopt_copies(tier)
        self.tiers, self.any_slow = self._tiers.tiers, self._tiers.any_slow
        self.now = clock  # that of `Checkpoint.used`
        self.find_position, self.summarise = self._positions.find, self._positions.summarise
        self.lose_device, self.use_device = self._tiers.lose_device, self._tiers.use_device

    def inquire(
        self, root: str, tokens: Sequence[int], limit: int | None = None, *, on_done: Callable[[], None]
    ) -> Inquiry | None:
        """Start to ask the shared store if it has a longer checkpoint of a prompt than this cache has.

        Returns None if there is no shared store, or if a checkpoint in it would save too little. See `prefetch` for
        `on_done`. Pass the inquiry to `learn` when it is done.
        """
        tier = self._shared
        if tier is None:
            return None
        shortest = self.peek(root, tokens, limit) + tier.min_tokens
        longest = len(tokens) if limit is None else min(limit, len(tokens))
        if longest < shortest:
            return None
        return tier.inquire(root, pack(tokens), shortest, longest, on_done)

    def learn(self, inquiry: Inquiry) -> None:
        """Add the checkpoint that a finished query to the shared store found to the cache, so that `prefetch` finds it.

        Does nothing for an inquiry that was passed before.
        """
        answer = inquiry.take()
        if answer is None or self._shared is None:
            return
        found = answer.found
        if found is not None and not self._index.is_too_long(found.tokens):
            self._index.adopt(self._shared, found)
        self._learn_path(answer.root, answer.known)

    def _learn_path(self, root: str, tokens: bytes) -> None:
        """Record another server's path without a state, so that a prompt that leaves it has a branch point."""
        if not tokens or self._index.is_too_long(tokens):
            return
        tree = self._positions.tree(root)
        if tree is None or tree.follow(tokens).length * TOKEN_BYTES < len(tokens):
            self._positions.become_ghost(self._positions.record(root, tokens, CheckpointKind.BRANCH))
            self._index.trim()

    def prefetch(
        self,
        root: str,
        tokens: Sequence[int],
        limit: int | None = None,
        *,
        on_done: Callable[[], None],
        owner: Hashable = None,
    ) -> Fetch | None:
        """Start to read the best checkpoint of a prompt from a slow tier. Return None if no read is needed.

        If many wait for a read, their owners take turns.

        Call `look_up` when the fetch is done. If it has failed, call this again: the next best may have to be read.
        Release the fetch after the look-up, or when the request is cancelled: it locks the checkpoint until then.
        `on_done` is called when the read has ended, mostly on the thread that reads. It is not called if the returned
        fetch is done already.
        """
        if not self._tiers.any_slow:
            return None
        self._tiers.settle()
        checkpoint = self._best(root, tokens, limit)
        if checkpoint is None or self._tiers.access(checkpoint) is not Access.SLOW:
            return None
        return self._tiers.start_fetch(checkpoint, on_done, owner)

    def look_up(
        self, root: str, tokens: Sequence[int], limit: int | None = None, *, fetch: Fetch | None = None
    ) -> Match:
        """Find and lock the longest checkpoint from which the prompt `tokens` can be continued.

        It has at most `limit` tokens, if that is given. A checkpoint at the very end is used only if its logits were
        kept, since otherwise a token must be run to get them. A checkpoint that only a slow tier has is used only if
        `fetch` has read it: this never waits for a file.
        """
        self._tiers.settle()
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

    def peek(self, root: str, tokens: Sequence[int], limit: int | None = None) -> int:
        """Return the tokens that `prefetch` and `look_up` would save now. Counts and locks nothing, reads no file."""
        self._tiers.settle()
        checkpoint = self._best(root, tokens, limit)
        return 0 if checkpoint is None else checkpoint.length

    def continuation(self, root: str, tokens: Sequence[int], count: int) -> list[int]:
        """Return what followed `tokens` on the path used last, stored or not. Counts, locks and reads nothing."""
        return unpack(self._positions.continuation(root, pack(tokens), count))

    def restore(self, match: Match, slot: int) -> None:
        """Load the state that a look-up found into `slot`, and release the match.

        Copies the state to the quickest tier that accepts it. Raises StateError if the state was lost meanwhile, and
        ValueError for a miss or a released match.
        """
        if match.checkpoint is None or not match.locked:
            raise ValueError(f"nothing to restore: {match}")
        try:
            self._tiers.load(match.checkpoint, slot, match.fetched)
        finally:
            self.release(match)
            self._index.trim()

    def release(self, match: Match) -> None:
        """Unlock the checkpoint of a match, if it has one that is locked."""
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
        """Store a checkpoint of the live state of `slot`, which has run exactly `tokens`.

        Return False if no tier had room. The path is known from then on. If these tokens have a checkpoint already, it
        stays, unless it lacks logits and `logits` are given. A waypoint that was used, or is inserted again as another
        `kind`, is no longer a waypoint.
        """
        if len(tokens) == 0:
            raise ValueError("tokens: an empty path has no checkpoint; expected at least one token")
        self._tiers.settle()
        packed = pack(tokens)
        if self._index.is_too_long(packed):
            self._stats.not_stored += 1
            return False
        checkpoint = self._positions.record(root, packed, kind)
        checkpoint.used = self.now()
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
        """Remove unlocked checkpoints of this initial state's digest, in every scope; return their number."""
        return self._drop_all(self._positions.under(lambda root: is_of_state(root, initial_state)))

    def drop_all(self) -> int:
        """Remove all but locked checkpoints; return how many positions that were, ghost entries included."""
        return self._drop_all(list(self._positions))

    def drop_position(self, position: str) -> bool:
        """Remove a position by its id; return False if it is locked. Raises NotFoundError if it is unknown."""
        checkpoint = self.find_position(position)
        return self._drop_all([checkpoint]) == 1

    @property
    def summary(self) -> CacheSummary | None:
        """The summary of the stored checkpoints for a fleet's router, or None before `summarise` was called."""
        return self._positions.summary

    def checkpoints(self, scope: str | None = None) -> list[Checkpoint]:
        """Return the records, not to be changed, of all positions or a scope's; see the cache's `browse`."""
        return self._positions.under(lambda root: scope is None or is_within(root, scope))

    def stats(self) -> CacheStats:
        """Return counters and sizes. Thread-safe; single numbers may be from neighbouring moments."""
        return replace(
            self._stats,
            misses=dict(self._stats.misses),
            writes_refused=sum(tier.writes_refused for tier in self.tiers),
            failed_writes=sum(tier.failed_writes for tier in self.tiers),
            checkpoints=self._positions.num_checkpoints,
            ghosts=self._positions.num_ghosts,
            device_logits_bytes=sum(tier.logits_bytes for tier in self.tiers),
            index_bytes=self._index.num_bytes,
            index_capacity=self._index.capacity,
            store=None if self._shared is None else self._shared.counters(),
            tiers=tuple(
                replace(stats, capacity=tier.queue.capacity, used=tier.queue.used, copies=len(tier.queue))
                for stats, tier in zip(self._stats.tiers, self.tiers, strict=True)
            ),
        )

    @property
    def has_unwritten(self) -> bool:
        """Whether checkpoints wait to be written to slow tiers by `write_behind`. May be read on any thread."""
        return self._tiers.has_unwritten

    def write_behind(self) -> None:
        """Begin to write a few checkpoints of the configured age to the slow tiers, without waiting."""
        self._tiers.write_behind()
        self._index.trim()

    def close(self) -> None:
        """Write the most valuable checkpoints to the slow tiers, as many as fit, and close all tiers."""
        self._tiers.flush()
        self._tiers.close()

    def _best(self, root: str, tokens: Sequence[int], limit: int | None) -> Checkpoint | None:
        """Return the checkpoint that `look_up` would use if all tiers were quick. Counts and locks nothing."""
        tree = self._positions.tree(root)
        if tree is None:
            return None
        checkpoints = tree.follow(pack(tokens)).values_back()
        return next((one for one in checkpoints if self._obstacle(one, len(tokens), limit) is None), None)

    def _obstacle(self, checkpoint: Checkpoint, length: int, limit: int | None) -> MissReason | None:
        """Return why a prompt of `length` tokens can't be continued from a checkpoint on its path; None if it can."""
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
        checkpoint.used = self.now()
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

    def _drop_all(self, checkpoints: Sequence[Checkpoint]) -> int:
        """Remove the unlocked ones of `checkpoints` from the cache, and return how many were removed."""
        going = [checkpoint for checkpoint in checkpoints if checkpoint.locks == 0]
        for checkpoint in going:
            self._tiers.drop(checkpoint)
            self._positions.forget(checkpoint)
        return len(going)


def _kept(logits: F32) -> F32:
    kept = np.array(logits, np.float32)
    kept.setflags(write=False)
    return kept


def make_cache(
    shape: ModelShape,
    model: str,
    live: LiveStates,
    config: CacheConfig | None = None,
    pool: SlotPool | None = None,
    writer: Executor | None = None,
    clock: Callable[[], float] = time.monotonic,
    store: OpenStore | None = None,
) -> StateCache:
    """Return a cache with the configured tiers: the device's `pool` if given, host memory, disk, the shared store.

    `model` is the fingerprint of all settings that must be equal for a state to be continued: weights and their format.
    `writer` writes the files; None makes one. `clock` returns seconds and never goes back. `store` stays
    open when the cache is closed.
    """
    config = config or CacheConfig()
    tiers: list[Tier] = []
    device_bytes = 0 if pool is None else pool.num_slabs * pool.slab_bytes
    if pool is not None:
        tiers.append(DeviceTier(pool, config.index_bytes(device_bytes) // 2))
    tiers.append(HostTier(shape, config.host_capacity, config.host_precision))
    if (disk := config.disk) is not None:
        writer = writer or ThreadPoolExecutor(1, thread_name_prefix="state-writer")
        reader = ThreadPoolExecutor(1, thread_name_prefix="state-reader")
        tiers.append(DiskTier(disk, model, shape, writer, reader))
    if store is not None:
        max_record_bytes = min(store.config.index_bytes, config.index_bytes(device_bytes) // 2)
        from rnn_engine_states.shared.checkpoints import (
            CheckpointStore,  # needs an extra; an open store shows that it is installed
        )

        checkpoints = CheckpointStore(store.client, store.config.ttl)
        tiers.append(SharedTier(store, checkpoints, model, shape, max_record_bytes))
    return StateCache(live, tiers, config, clock)


class CacheUpkeep:
    """Writes a cache's states to slow tiers by age, and drops unreachable ones, for one event loop."""

    def __init__(
        self, cache: StateCache, call: Callable[[Callable[[], None]], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Write states to slow tiers every second; `call` runs its argument on the thread that owns `cache`."""
        self._cache = cache
        self._call = call
        self._loop = loop
        self._stopped = False
        self._next: asyncio.TimerHandle | None = None
        if cache.any_slow:
            self._write_behind()

    def stop(self) -> None:
        """Stop the periodic writing of states. When its thread ends, the cache writes the remaining states itself."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()  # and drop the reference to the cache

    def forget_root(self, root: str) -> None:
        """Drop from the cache all checkpoints that start from the state with this digest. For any thread."""
        self._do(partial(self._cache.drop_state, root), "states that no request can reach stay in it")

    def changes(self, since: int | None) -> SummaryChanges | None:
        """Return the summary's changes after version `since`; at the first call, make it and return None."""
        if self._cache.summary is None:
            self._do(self._cache.summarise, "its contents are not reported")
            return None
        return self._cache.summary.changes(since)

    def _write_behind(self) -> None:
        """Write to the slow tiers the states that have reached the configured age, and again every second."""
        if self._stopped:
            return
        if self._cache.has_unwritten:
            self._do(self._cache.write_behind, "some states are not written to disk yet")
        self._next = self._loop.call_later(_WRITE_BEHIND_SECONDS, self._write_behind)

    def _do(self, action: Callable[[], object], consequence: str) -> None:
        """Run `action` on the cache's thread; if it fails, log that with its `consequence` in words."""

        def call() -> None:
            try:
                action()
            except Exception:
                logger.exception("the cache of states failed; %s", consequence)

        self._call(call)
