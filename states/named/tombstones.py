"""What became of deleted names, for error messages."""

from __future__ import annotations


class Tombstones:
    """The names that were deleted last, and why."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._reasons: dict[str, str] = {}

    def note(self, name: str, reason: str) -> None:
        """Remember why a name was deleted."""
        self._reasons.pop(name, None)
        self._reasons[name] = reason
        if len(self._reasons) > self._limit:
            del self._reasons[next(iter(self._reasons))]

    def revive(self, name: str) -> None:
        """Forget a name, which is in use again."""
        self._reasons.pop(name, None)

    def reason(self, name: str) -> str | None:
        """Return why a name was deleted; None where that is not known."""
        return self._reasons.get(name)
