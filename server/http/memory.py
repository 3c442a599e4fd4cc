"""How many bytes the requests hold, bounded over all of them together."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rnn_engine.errors import OverloadedError

FREE_BYTES = 1 << 16
"""Bytes that each request may hold uncounted, so that small requests run where large ones take all there is."""

_RETRY_SECONDS = 1.0
_VALUE_BYTES = {b",": 48, b":": 150, b"{": 100, b"[": 80}  # that Python needs for what follows the character, about


def parsed_bytes(data: bytes | bytearray) -> int:
    """Return about how much memory the values of a JSON text take. Texts in it that have such characters count too."""
    return 2 * len(data) + sum(num_bytes * data.count(character) for character, num_bytes in _VALUE_BYTES.items())


class MemoryBudget:
    """Bytes that requests may hold at a time. For one event loop."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0

    @property
    def most_each(self) -> int:
        """Return how much one request may hold."""
        return self.capacity // 2 + FREE_BYTES

    def lease(self) -> MemoryLease:
        """Return a context manager for what one request holds; leaving it gives everything back."""
        return MemoryLease(self)


class MemoryLease:
    """What one request holds of a budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.num_bytes = 0
        self._counted = 0

    def hold(self, num_bytes: int) -> None:
        """Hold `num_bytes` in all from now on. Raises OverloadedError where there is no room for more."""
        counted = max(num_bytes - FREE_BYTES, 0)
        held = self.budget.held + counted - self._counted
        if counted > self._counted and held > self.budget.capacity:
            raise OverloadedError(
                f"requests hold {self.budget.held} bytes of memory, and this one needs {counted - self._counted} more; "
                f"expected at most {self.budget.capacity} (max_held_bytes)",
                retry_after=_RETRY_SECONDS,
            )
        self.num_bytes, self.budget.held, self._counted = num_bytes, held, counted

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hold(0)
