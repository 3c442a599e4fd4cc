"""Which positions a cache knows: trees of token paths with ghost entries, within a bound on host memory."""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator

from states.cache.browse import CacheSummary
from states.cache.checkpoint import Checkpoint, CheckpointKind, MissReason, position_missing
from states.cache.eviction import WAYPOINT_SHARE
from states.cache.tiers.tier import FoundCopy, Tier
from states.cache.tiers.tiered import TieredStore
from states.cache.tree import TokenTree
from states.tokens import TOKEN_BYTES

# Ghost entries: paths whose states are gone, remembered so that branch points are seen.


class GhostEntries:
    """Checkpoints without a copy, the longest unused first. Bounded by the sum of their lengths in tokens."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._entries: OrderedDict[Checkpoint, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Add an entry; returns those that must be forgotten for it, which may include itself."""
        self._entries[checkpoint] = None
        self._tokens += checkpoint.length
        forgotten = []
        while self._tokens > self._max_tokens:
            forgotten.append(self.pop_oldest())
        return forgotten

    def pop_oldest(self) -> Checkpoint:
        """Remove the longest unused entry and return it. There must be one."""
        oldest, _ = self._entries.popitem(last=False)
        self._tokens -= oldest.length
        return oldest

    def discard(self, checkpoint: Checkpoint) -> None:
        """Remove an entry, if it is one."""
        if checkpoint in self._entries:
            del self._entries[checkpoint]
            self._tokens -= checkpoint.length

    def touch(self, checkpoint: Checkpoint) -> None:
        """Mark an entry as recently used."""
        self._entries.move_to_end(checkpoint)


# The index of a cache: what is known of token paths and copies, within a bound on host memory.


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

_MOST_BEYOND = 64  # positions behind a path that are looked at, which takes up to 150 µs


class Positions:
    """The records of one cache by their paths. Whoever holds it bounds `num_bytes`."""

    def __init__(self, max_ghost_tokens: int, clock: Callable[[], float]) -> None:
        """Ghost entries take `max_ghost_tokens` together at most."""
        self._trees: dict[str, TokenTree[Checkpoint]] = {}
        self._ghosts = GhostEntries(max_ghost_tokens)
        self._clock = clock
        self._ids = itertools.count(secrets.randbits(40))  # so that an id of another process means nothing
        self.num_bytes = 0  # of the trees
        self.summary: CacheSummary | None = None  # after `summarise`

    def __iter__(self) -> Iterator[Checkpoint]:
        for tree in self._trees.values():
            yield from tree

    @property
    def num_checkpoints(self) -> int:
        """How many are no ghost entries. Thread-safe."""
        return sum(len(tree) for tree in list(self._trees.values())) - len(self._ghosts)

    @property
    def num_ghosts(self) -> int:
        return len(self._ghosts)

    def tree(self, root: str) -> TokenTree[Checkpoint] | None:
        """The paths of a root; None where there are none."""
        return self._trees.get(root)

    def continuation(self, root: str, tokens: bytes, count: int) -> bytes:
        """Return what follows `tokens` on the path under `root` that was used last, `count` tokens at most, packed.

        Empty where no longer path is known. Where many are, the last used of some of them is taken.
        """
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
        """All positions of the roots that are wanted, each of which is asked for once."""
        return [checkpoint for root, tree in self._trees.items() if is_wanted(root) for checkpoint in tree]

    def find(self, position: str) -> Checkpoint:
        """The position with this id. Raises NotFoundError."""
        for checkpoint in self:
            if str(checkpoint.id) == position:
                return checkpoint
        raise position_missing(position)

    def cost(self, tokens: bytes) -> int:
        """How many bytes the path of packed tokens takes by itself."""
        return _EMPTY_TREE.cost(tokens) + _EMPTY_TREE.num_bytes

    def record(self, root: str, tokens: bytes, kind: CheckpointKind) -> Checkpoint:
        """Return the record at the end of a path of packed tokens, or a new one."""
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
        """Remove a record whose copies are gone."""
        self._ghosts.discard(checkpoint)
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
        """Forget the ghost entry that was unused for longest; False where there is none."""
        if len(self._ghosts) == 0:
            return False
        self.forget(self._ghosts.pop_oldest())
        return True

    def become_ghost(self, checkpoint: Checkpoint) -> None:
        """Take note that no tier has a copy any more. Others are forgotten for it, or it is itself.

        A waypoint always is, for the path goes on to the end of its prompt.
        """
        if checkpoint.is_waypoint:
            self.forget(checkpoint)
            return
        self._note_lost(checkpoint)
        for forgotten in self._ghosts.add(checkpoint):
            self.forget(forgotten)

    def leave_ghosts(self, checkpoint: Checkpoint) -> None:
        """Take note that a copy is about to be kept."""
        self._ghosts.discard(checkpoint)

    def touch_ghost(self, checkpoint: Checkpoint) -> None:
        """Mark a ghost entry as recently used."""
        self._ghosts.touch(checkpoint)

    def note_kept(self, checkpoint: Checkpoint) -> None:
        """Take note that a copy is kept, if one is."""
        if self.summary is not None and checkpoint.resumable:
            self.summary.keep(checkpoint)

    def summarise(self) -> None:
        """Begin to keep a `summary`. Does nothing the second time."""
        if self.summary is None:
            self.summary = CacheSummary()
            for checkpoint in self:
                self.note_kept(checkpoint)

    def _note_lost(self, checkpoint: Checkpoint) -> None:
        if self.summary is not None:
            self.summary.lose(checkpoint)


_EMPTY_TREE: TokenTree[Checkpoint] = TokenTree()
