"""The memory that calls hold for their bodies, counted in one budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rnn_engine.errors import OverloadedError
from rnn_engine_server.core.routing import AppKey

FREE_BYTES = 1 << 16
"""Bytes that each request may hold without being counted, so that small requests run while large ones take all the
memory.
"""

_HELD_RETRY_SECONDS = 1.0
_VALUE_BYTES = {b",": 48, b":": 150, b"{": 100, b"[": 80}  # about what Python needs for the value after the character


def parsed_bytes(data: bytes | bytearray) -> int:
    """Estimate how many bytes of memory a JSON text will take once parsed.

    Commas and brackets in strings count too, as if they separated values.
    """
    return 2 * len(data) + sum(num_bytes * data.count(character) for character, num_bytes in _VALUE_BYTES.items())


class MemoryBudget:
    """A budget for the memory that all running requests together use for their bodies. For one event loop."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0

    @property
    def most_each(self) -> int:
        """The most bytes of the budget that one request may hold."""
        return self.capacity // 2 + FREE_BYTES

    @contextmanager
    def lease(self) -> Iterator[MemoryLease]:
        """Count one request's memory during a `with` block, whose end returns all of it to the budget."""
        lease = MemoryLease(self)
        try:
            yield lease
        finally:
            lease.hold(0)


class MemoryLease:
    """The memory that one request holds, counted in a memory budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.num_bytes = 0
        self._counted = 0

    def hold(self, num_bytes: int) -> None:
        """Set the number of bytes that the request holds in total to `num_bytes`.

        Raises OverloadedError if the budget has no room.
        """
        counted = max(num_bytes - FREE_BYTES, 0)
        held = self.budget.held + counted - self._counted
        if counted > self._counted and held > self.budget.capacity:
            raise OverloadedError(
                f"requests hold {self.budget.held} bytes of memory, and this one needs {counted - self._counted} more; "
                f"expected at most {self.budget.capacity} (max_held_bytes)",
                retry_after=_HELD_RETRY_SECONDS,
            )
        self.num_bytes, self.budget.held, self._counted = num_bytes, held, counted


BUDGET = AppKey("budget", MemoryBudget)
"""The memory that all calls share."""
