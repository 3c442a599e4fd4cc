"""Which positions a cache knows: a tree of token paths for each root, and which of them are ghost entries."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator

from states.cache.checkpoint import Checkpoint, CheckpointKind, position_missing
from states.cache.ghosts import GhostEntries
from states.cache.summary import CacheSummary
from states.cache.tree import TokenTree
from states.tokens import TOKEN_BYTES

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
