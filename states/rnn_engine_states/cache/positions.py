"""The positions that a cache knows: trees of token paths with checkpoints and ghost entries, bounded in host memory."""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator

from rnn_engine_states.cache.browse import CacheSummary
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason, position_missing
from rnn_engine_states.cache.eviction import WAYPOINT_SHARE
from rnn_engine_states.cache.tiers.tier import FoundCopy, Tier
from rnn_engine_states.cache.tiers.tiered import TieredStore
from rnn_engine_states.cache.tree import TokenTree
from rnn_engine_states.tokens import TOKEN_BYTES

# The index of a cache: its records of token paths and copies, within a limit on host memory.


class Index:
    """Bounds the host memory of a cache's records to `capacity` bytes, by removing the least useful records.

    Waypoints are removed first while they take more than their share, then ghost entries, then copies that are known to
    be in a shared store, then other checkpoints.
    """

    def __init__(self, positions: Positions, tiers: TieredStore, capacity: int) -> None:
        """Limit the host memory that the records of `positions` and `tiers` take to `capacity` bytes."""
        self._positions = positions
        self._tiers = tiers
        self.capacity = capacity

    @property
    def num_bytes(self) -> int:
        """The estimated host memory in bytes: token paths, records of copies, and logits of copies on the device."""
        logits = sum(tier.logits_bytes for tier in self._tiers.tiers)
        return self._positions.num_bytes + _COPY_BYTES * self._tiers.num_copies + logits

    def is_too_long(self, tokens: bytes) -> bool:
        """Return True if the path of packed `tokens` takes more than `capacity` bytes by itself."""
        return self._positions.cost(tokens) + _COPY_BYTES > self.capacity

    def trim(self) -> None:
        """Remove the least useful records until the others take at most `capacity` bytes or are all locked."""
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
        """Register the copies that an earlier process left in a tier, and delete those without room."""
        copies = tier.find_copies()
        excess = sum(found.num_bytes for found in copies) - tier.queue.capacity
        for found in copies:
            if excess > 0 or self.is_too_long(found.tokens):
                excess -= found.num_bytes
                tier.discard(found)
                continue
            self.adopt(tier, found)

    def adopt(self, tier: Tier, found: FoundCopy) -> None:
        """Register a copy if it is the only one and has room, else only its path of tokens."""
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


_COPY_BYTES = 1000  # an estimate of the memory of a tier's records of one copy
_WAYPOINT_BYTES = 2600  # of one waypoint: of its copy, its record and its place in the tree

_MOST_BEYOND = 64  # positions after a path that are examined, which takes up to 150 µs


class Positions:
    """The trees of token paths that a cache knows, one tree for each root, with a record for each position.

    A record without a stored state is a ghost entry. It is remembered so that branch points are recognised. The owner
    of this object must bound `num_bytes`, the size of the trees.
    """

    def __init__(self, max_ghost_tokens: int, clock: Callable[[], float]) -> None:
        """Start without positions. The ghost entries may have `max_ghost_tokens` tokens in all."""
        self._trees: dict[str, TokenTree[Checkpoint]] = {}
        self._ghosts: OrderedDict[Checkpoint, None] = OrderedDict()  # the least recently used first
        self._ghost_tokens = 0
        self._max_ghost_tokens = max_ghost_tokens
        self._clock = clock
        self._ids = itertools.count(secrets.randbits(40))  # random, so that an id of another process matches nothing
        self.num_bytes = 0  # of the trees
        self.summary: CacheSummary | None = None  # after `summarise`

    def __iter__(self) -> Iterator[Checkpoint]:
        for tree in self._trees.values():
            yield from tree

    @property
    def num_checkpoints(self) -> int:
        """The number of positions with a stored state. Thread-safe."""
        return sum(len(tree) for tree in list(self._trees.values())) - len(self._ghosts)

    @property
    def num_ghosts(self) -> int:
        return len(self._ghosts)

    def tree(self, root: str) -> TokenTree[Checkpoint] | None:
        """Return the tree of token paths that start from `root`, or None if no such path is known."""
        return self._trees.get(root)

    def continuation(self, root: str, tokens: bytes, count: int) -> bytes:
        """Return up to `count` packed tokens after `tokens` on the path used last, of some that are compared."""
        tree = self._trees.get(root)
        if tree is None:
            return b""
        place = tree.follow(tokens)
        if place.length * TOKEN_BYTES < len(tokens):
            return b""
        latest = max(tree.values_beyond(place, _MOST_BEYOND), key=lambda one: one.used, default=None)
        if latest is None:
            return b""
        return latest.known_place().tokens()[len(tokens) : len(tokens) + count * TOKEN_BYTES]

    def under(self, is_wanted: Callable[[str], bool]) -> list[Checkpoint]:
        """Return all records under the roots for which `is_wanted`, called once for each, returns True."""
        return [checkpoint for root, tree in self._trees.items() if is_wanted(root) for checkpoint in tree]

    def find(self, position: str) -> Checkpoint:
        """Return the record of the position with this id. Raises NotFoundError if the id is unknown."""
        for checkpoint in self:
            if str(checkpoint.id) == position:
                return checkpoint
        raise position_missing(position)

    def cost(self, tokens: bytes) -> int:
        """Return how many bytes the path of packed `tokens` takes if it shares no tokens with other paths."""
        return _EMPTY_TREE.cost(tokens) + _EMPTY_TREE.num_bytes

    def record(self, root: str, tokens: bytes, kind: CheckpointKind) -> Checkpoint:
        """Return the record at the end of a path of packed `tokens`. Add a record of this `kind` if there is none."""
        tree = self._trees.get(root)
        if tree is None:
            tree = self._trees[root] = TokenTree()
            self.num_bytes += tree.num_bytes
        checkpoint = tree.get(tokens)
        if checkpoint is None:
            checkpoint = Checkpoint(root, kind, next(self._ids), self._clock())
            before = tree.num_bytes
            checkpoint.place = tree.put(tokens, checkpoint)
            self.num_bytes += tree.num_bytes - before
        return checkpoint

    def forget(self, checkpoint: Checkpoint) -> None:
        """Remove the record of a position because no tier has a copy of its state any more."""
        self.leave_ghosts(checkpoint)
        self._note_lost(checkpoint)
        tree = self._trees[checkpoint.root]
        before = tree.num_bytes
        tree.remove(checkpoint.known_place())
        self.num_bytes += tree.num_bytes - before
        checkpoint.place = None
        if len(tree) == 0:
            self.num_bytes -= tree.num_bytes
            del self._trees[checkpoint.root]

    def forget_oldest_ghost(self) -> bool:
        """Remove the least recently used ghost entry. Return False if there is none."""
        if not self._ghosts:
            return False
        self.forget(next(iter(self._ghosts)))
        return True

    def become_ghost(self, checkpoint: Checkpoint) -> None:
        """Turn the record of a position into a ghost entry, because no tier has a copy of its state any more.

        To make room for it, older ghost entries or this one are removed. A waypoint is always removed instead, since
        its path continues to the end of its prompt.
        """
        if checkpoint.is_waypoint:
            self.forget(checkpoint)
            return
        self._note_lost(checkpoint)
        self._ghosts[checkpoint] = None
        self._ghost_tokens += checkpoint.length
        while self._ghost_tokens > self._max_ghost_tokens:
            self.forget_oldest_ghost()

    def leave_ghosts(self, checkpoint: Checkpoint) -> None:
        """Remove a position's record from the ghost entries, if it is one."""
        if checkpoint in self._ghosts:
            del self._ghosts[checkpoint]
            self._ghost_tokens -= checkpoint.length

    def touch_ghost(self, checkpoint: Checkpoint) -> None:
        """Mark a ghost entry as recently used."""
        self._ghosts.move_to_end(checkpoint)

    def note_kept(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint to the summary for a fleet's router, if there is a summary and some tier has a copy."""
        if self.summary is not None and checkpoint.resumable:
            self.summary.keep(checkpoint)

    def summarise(self) -> None:
        """Start the summary of the stored checkpoints, which is kept up to date from now on. Later calls do nothing."""
        if self.summary is None:
            self.summary = CacheSummary()
            for checkpoint in self:
                self.note_kept(checkpoint)

    def _note_lost(self, checkpoint: Checkpoint) -> None:
        if self.summary is not None:
            self.summary.lose(checkpoint)


_EMPTY_TREE: TokenTree[Checkpoint] = TokenTree()
