"""The cache of recurrent states: from token prefixes to checkpoints in tiers.

How a scheduler uses it, all on the thread that owns the runner:

    fetch = cache.prefetch(root, prompt, on_done=wake)  # where not None, wait until fetch.done
    match = cache.look_up(root, prompt, fetch=fetch)    # locks what it found; then release the fetch
    cache.restore(match, slot)                          # or, where match.saved is 0, write the initial state
    for cut in plan_checkpoints(len(prompt), match.saved, match.known, turns, marks):
        run the prompt up to cut.position in chunks; read the last logits back if cut.logits
        cache.insert(root, prompt[: cut.position], slot, kind=cut.kind, logits=row or None)
    decode; at the end of the generation, the last token drawn not being run yet:
    cache.insert(root, prompt + run, slot, kind=CheckpointKind.GENERATION_END, logits=row)

Where `match.logits` is not None the whole prompt was found, and its next token is drawn from these logits without a
forward pass. A match that is not restored is given back by `release`. Requests that arrive together go through
`states.cache.inflight.InFlight` first, so that what they share runs once.

Knows tokens and arrays; knows no device, no text and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rnn_engine.types import F32, ModelShape
from states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason, Tier
from states.cache.config import CacheConfig, DiskConfig
from states.cache.counters import CacheStats, Counters, collect_stats
from states.cache.device import DevicePool, LiveStates
from states.cache.fetch import Fetch
from states.cache.ghosts import GhostEntries
from states.cache.tiers.device import DeviceTier
from states.cache.tiers.disk import DiskTier
from states.cache.tiers.host import HostTier
from states.cache.tiers.tiered import TieredStore
from states.cache.tiers.writer import BackgroundWriter, InlineWriter, Writer
from states.cache.tree import TokenTree
from states.payload import Payload
from states.tokens import pack


@dataclass(slots=True, eq=False)
class Match:
    """What a look-up found. Its checkpoint can't be evicted until `restore` or `release`."""

    length: int  # tokens of the prompt
    saved: int  # tokens that need not be run
    known: int  # tokens along which the prompt follows a known path: where it leaves is a branch point
    miss: MissReason | None  # why nothing was saved; None where something was
    tier: Tier | None  # the quickest tier that had the state
    logits: F32 | None  # [V] read-only: those after the last token, where the whole prompt was found
    checkpoint: Checkpoint | None = field(repr=False)
    fetched: Payload | None = field(repr=False)  # where the state is in no quick tier
    locked: bool = field(repr=False)


class StateCache:
    """One model's cache. Not thread-safe, and it calls the device: one thread owns it. Only `stats` may be called
    from other threads."""

    def __init__(
        self,
        shape: ModelShape,
        model: str,
        live: LiveStates,
        config: CacheConfig | None = None,
        pool: DevicePool | None = None,
        writer: Writer | None = None,
    ) -> None:
        """`model` is the fingerprint of whatever must be equal for a state to be continued: weights and their format.

        Takes in the files of earlier runs of the same model. `writer` writes the files; None is one as configured.
        """
        config = config or CacheConfig()
        self._trees: dict[str, TokenTree[Checkpoint]] = {}
        self._marks = GhostEntries(config.max_mark_tokens)
        self._counters = Counters()
        disk = None if config.disk is None else _disk_tier(config.disk, model, shape, writer)
        self._tiers = TieredStore(
            live,
            None if pool is None else DeviceTier(pool),
            HostTier(config.host_capacity, config.host_precision),
            disk,
            self._counters,
            self._become_mark,
            config.fetch_capacity,
        )
        if disk is not None:
            self._adopt_files(disk)

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
        checkpoint = self._best(root, tokens, limit)
        if checkpoint is None or not self._tiers.is_slow(checkpoint):
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
        self._counters.look_ups += 1
        self._counters.tokens_looked_up += len(tokens)
        tree = self._trees.get(root)
        if tree is None:
            return self._missed(len(tokens), 0, MissReason.NO_PATHS)
        place = tree.follow(pack(tokens))
        reason = MissReason.NO_CHECKPOINT if place.length > 0 else MissReason.UNKNOWN_PROMPT
        for checkpoint in place.values_back():
            if not checkpoint.resumable:
                self._marks.touch(checkpoint)
            if (obstacle := _obstacle(checkpoint, len(tokens), limit)) is not None:
                reason = _weightier(reason, obstacle)
                continue
            fetched = self._tiers.payload(checkpoint, fetch)
            if fetched is None and self._tiers.is_slow(checkpoint):
                reason = _weightier(reason, MissReason.NOT_FETCHED)
                continue
            tier = min(checkpoint.sizes, key=_QUICKEST_FIRST.index)
            return self._hit(checkpoint, tier, fetched, len(tokens), place.length)
        return self._missed(len(tokens), place.length, reason)

    def peek(self, root: str, tokens: Sequence[int], limit: int | None = None) -> int:
        """How many tokens `look_up` would save after `prefetch`. Counts nothing, locks nothing, reads no file."""
        self._tiers.settle()
        checkpoint = self._best(root, tokens, limit)
        return 0 if checkpoint is None else checkpoint.length

    def restore(self, match: Match, slot: int) -> None:
        """Make the state that was found live in `slot`, promote it to the quickest tier, and release the match."""
        if match.checkpoint is None or not match.locked:
            raise ValueError(f"nothing to restore: {match}")
        try:
            self._tiers.load(match.checkpoint, slot, match.fetched)
        finally:
            self.release(match)

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
        label: str = "",
        pinned: bool = False,
    ) -> bool:
        """Keep a copy of the live state of `slot`, which has run exactly `tokens`; the path is known from now on.

        False where no tier had room. Where these tokens have a checkpoint already, it stays, unless it lacks logits
        that are given now. `pinned` keeps it in its tier until `unpin`.
        """
        if len(tokens) == 0:
            raise ValueError("tokens: an empty path has no checkpoint; expected at least one token")
        self._tiers.settle()
        checkpoint = self._record(root, pack(tokens), kind, label)
        if checkpoint.resumable and (logits is None or checkpoint.has_logits or checkpoint.locks > 0):
            checkpoint.pinned |= pinned
            self._tiers.touch(checkpoint)
            return True
        self._tiers.drop(checkpoint)
        self._marks.discard(checkpoint)
        checkpoint.kind, checkpoint.label = kind, label
        checkpoint.saves = self._tokens_to_shorter(checkpoint)
        try:
            stored = self._tiers.save(checkpoint, slot, None if logits is None else _kept(logits))
        finally:
            if not checkpoint.resumable:
                self._become_mark(checkpoint)
        if stored:
            checkpoint.absence = MissReason.EVICTED
        checkpoint.pinned |= pinned and stored
        return stored

    def unpin(self, root: str, tokens: Sequence[int]) -> bool:
        """Let a pinned checkpoint be evicted again. False where there is none."""
        checkpoint = self._find(root, tokens)
        if checkpoint is None or not checkpoint.pinned:
            return False
        checkpoint.pinned = False
        self._tiers.touch(checkpoint)
        return True

    def drop(self, root: str, tokens: Sequence[int]) -> bool:
        """Forget one checkpoint and its path. False where there is none, or where a match has locked it."""
        checkpoint = self._find(root, tokens)
        if checkpoint is None or checkpoint.locks > 0:
            return False
        self._drop(checkpoint)
        return True

    def drop_root(self, root: str) -> int:
        """Forget all checkpoints of an initial state but the locked ones; returns how many went."""
        tree = self._trees.get(root)
        going = [] if tree is None else [checkpoint for checkpoint in tree if checkpoint.locks == 0]
        for checkpoint in going:
            self._drop(checkpoint)
        return len(going)

    def drop_all(self) -> int:
        """Forget everything but the locked checkpoints; returns how many positions, path marks included, went."""
        return sum(self.drop_root(root) for root in list(self._trees))

    def checkpoints(self) -> list[Checkpoint]:
        """Every known position, ghost entries included. Read-only; see `states.cache.snapshot`."""
        return [checkpoint for tree in self._trees.values() for checkpoint in tree]

    def stats(self) -> CacheStats:
        """The counts and sizes of this moment. Thread-safe; single numbers may be from neighbouring moments."""
        path_marks = len(self._marks)
        positions = sum(len(tree) for tree in list(self._trees.values()))
        device_logits_bytes = self._tiers.device_logits_bytes
        return collect_stats(
            self._counters, self._tiers.ledgers, positions - path_marks, path_marks, device_logits_bytes
        )

    def close(self) -> None:
        """Bring the most valuable checkpoints to the disk, where there is a disk tier, and free the device's slabs."""
        self._tiers.flush()
        self._tiers.close()

    def _best(self, root: str, tokens: Sequence[int], limit: int | None) -> Checkpoint | None:
        """The longest checkpoint from which a prompt can go on, whatever tier it lies in."""
        tree = self._trees.get(root)
        if tree is None:
            return None
        checkpoints = tree.follow(pack(tokens)).values_back()
        return next((one for one in checkpoints if _obstacle(one, len(tokens), limit) is None), None)

    def _hit(self, checkpoint: Checkpoint, tier: Tier, fetched: Payload | None, length: int, known: int) -> Match:
        exact = checkpoint.length == length
        checkpoint.hits += 1
        checkpoint.locks += 1
        checkpoint.saves = self._tokens_to_shorter(checkpoint)
        self._tiers.touch(checkpoint)
        self._counters.hits[tier] += 1
        self._counters.exact_hits += exact
        self._counters.tokens_saved += checkpoint.length
        logits = self._tiers.logits(checkpoint, fetched) if exact else None
        return Match(length, checkpoint.length, known, None, tier, logits, checkpoint, fetched, True)

    def _missed(self, length: int, known: int, reason: MissReason) -> Match:
        self._counters.misses[reason] += 1
        return Match(length, 0, known, reason, None, None, None, None, False)

    def _record(self, root: str, tokens: bytes, kind: CheckpointKind, label: str) -> Checkpoint:
        tree = self._trees.setdefault(root, TokenTree())
        checkpoint = tree.get(tokens)
        if checkpoint is None:
            checkpoint = Checkpoint(root, kind, label)
            checkpoint.place = tree.put(tokens, checkpoint)
        return checkpoint

    def _find(self, root: str, tokens: Sequence[int]) -> Checkpoint | None:
        tree = self._trees.get(root)
        return None if tree is None else tree.get(pack(tokens))

    def _tokens_to_shorter(self, checkpoint: Checkpoint) -> int:
        above = checkpoint.known_place().values_back()
        shorter = next((other for other in above if other is not checkpoint and other.resumable), None)
        return checkpoint.length - (0 if shorter is None else shorter.length)

    def _become_mark(self, checkpoint: Checkpoint) -> None:
        for forgotten in self._marks.add(checkpoint):
            self._forget(forgotten)

    def _drop(self, checkpoint: Checkpoint) -> None:
        self._tiers.drop(checkpoint)
        self._marks.discard(checkpoint)
        self._forget(checkpoint)

    def _forget(self, checkpoint: Checkpoint) -> None:
        tree = self._trees[checkpoint.root]
        tree.remove(checkpoint.known_place())
        checkpoint.place = None
        if len(tree) == 0:
            del self._trees[checkpoint.root]

    def _adopt_files(self, disk: DiskTier) -> None:
        files = disk.find_files()
        excess = sum(found.num_bytes for found in files) - disk.ledger.capacity
        for found in files:
            if excess > 0:
                excess -= found.num_bytes
                disk.forget_file(found)
                continue
            origin = found.origin
            checkpoint = self._record(origin.initial_state, found.tokens, CheckpointKind(origin.kind), origin.label)
            checkpoint.absence = MissReason.EVICTED
            checkpoint.has_logits = found.has_logits
            checkpoint.saves = self._tokens_to_shorter(checkpoint)
            disk.adopt(checkpoint, found)


_QUICKEST_FIRST = list(Tier)
_LIGHTEST_FIRST = list(MissReason)


def _obstacle(checkpoint: Checkpoint, length: int, limit: int | None) -> MissReason | None:
    """Why a prompt of `length` tokens that passes a checkpoint can't go on from it; None where it can."""
    if not checkpoint.resumable:
        return checkpoint.absence
    if limit is not None and checkpoint.length > limit:
        return MissReason.BEYOND_LIMIT
    if checkpoint.length == length and not checkpoint.has_logits:
        return MissReason.NO_LOGITS
    return None


def _weightier(first: MissReason, second: MissReason) -> MissReason:
    return max(first, second, key=_LIGHTEST_FIRST.index)


def _kept(logits: F32) -> F32:
    kept = np.array(logits, np.float32)
    kept.setflags(write=False)
    return kept


def _disk_tier(config: DiskConfig, model: str, shape: ModelShape, writer: Writer | None) -> DiskTier:
    if writer is None:
        writer = BackgroundWriter(config.background_bytes) if config.background_bytes > 0 else InlineWriter()
    return DiskTier(config.folder, config.capacity, config.precision, model, shape, writer)
