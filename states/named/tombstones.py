"""What became of names that are gone, so that those who ask for one hear more than that it does not exist."""

from __future__ import annotations


class Tombstones:
    """The latest names that went, and why."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._reasons: dict[str, str] = {}

    def note(self, name: str, reason: str) -> None:
        """The name is gone."""
        self._reasons.pop(name, None)
        self._reasons[name] = reason
        if len(self._reasons) > self._limit:
            del self._reasons[next(iter(self._reasons))]

    def revive(self, name: str) -> None:
        """The name is in use again."""
        self._reasons.pop(name, None)

    def reason(self, name: str) -> str | None:
        """Why it went; None where nobody knows of it."""
        return self._reasons.get(name)
