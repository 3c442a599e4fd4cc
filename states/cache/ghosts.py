"""Ghost entries: paths whose states are gone, remembered so that branch points are seen."""

from __future__ import annotations

from collections import OrderedDict

from states.cache.checkpoint import Checkpoint


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
