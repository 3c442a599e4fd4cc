"""The path marks: positions whose states are gone, remembered so that branch points are seen. Bounded in tokens."""

from __future__ import annotations

from collections import OrderedDict

from states.cache.checkpoint import Checkpoint


class GhostEntries:
    """Marks in the order in which they were last on a prompt's way, the longest unused first."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._marks: OrderedDict[Checkpoint, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """Enter a mark; returns those that must be forgotten for it, which may include itself."""
        self._marks[checkpoint] = None
        self._tokens += checkpoint.length
        forgotten = []
        while self._tokens > self._max_tokens:
            oldest, _ = self._marks.popitem(last=False)
            self._tokens -= oldest.length
            forgotten.append(oldest)
        return forgotten

    def discard(self, checkpoint: Checkpoint) -> None:
        """Take a mark out, for it gets a state or is forgotten. Does nothing where it is none."""
        if checkpoint in self._marks:
            del self._marks[checkpoint]
            self._tokens -= checkpoint.length

    def touch(self, checkpoint: Checkpoint) -> None:
        """A prompt passed here."""
        self._marks.move_to_end(checkpoint)
