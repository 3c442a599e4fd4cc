"""KeyedLocks: those who want to change the same thing go one after the other, in the order in which they came.

Knows keys; knows nothing of what they stand for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLocks:
    """Keys are forgotten when nobody has or wants them. For one event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._wanted: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Alone with `key` for as long as the block runs."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._wanted[key] = self._wanted.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._wanted[key] -= 1
            if self._wanted[key] == 0:
                del self._wanted[key], self._locks[key]

    def __len__(self) -> int:
        return len(self._wanted)
