"""Bounded in-memory stores for values that outlive a request.

cachetools does not serve here: its caches have one bound, on the number of values or on their bytes, and not both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp.web import AppKey

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class KeptUsage:
    """The usage of a bounded store: its number of values, their bytes, and how many were evicted since the start."""

    values: int
    num_bytes: int
    evictions: int


class BoundedStore(Generic[Key, Value]):
    """A key-value store with bounds on the number and the bytes of its values; it evicts the least recently used ones.

    It has no lock: code that shares it between threads needs one.
    """

    def __init__(self, most_values: int, most_bytes: int) -> None:
        self._most_values = most_values
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()  # the one unused for longest first
        self._evictions = 0
        self._num_bytes = 0

    @property
    def usage(self) -> KeptUsage:
        return KeptUsage(len(self._kept), self._num_bytes, self._evictions)

    def put(self, key: Key, value: Value, num_bytes: int) -> None:
        """Store a value, replacing one with the same key, and evict others to make room.

        A value that exceeds the store's bound on bytes by itself is not stored, and no other is evicted.
        """
        self._drop(key)
        if num_bytes > self._most_bytes:
            self._evictions += 1
            return
        self._kept[key] = value, num_bytes
        self._num_bytes += num_bytes
        while len(self._kept) > self._most_values or self._num_bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))
            self._evictions += 1

    def get(self, key: Key) -> Value | None:
        """Return the value with this key, or None if it is not stored, and mark it as the most recently used."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def pop(self, key: Key) -> Value | None:
        """Remove the value with this key and return it, or return None if it is not stored."""
        value = self.get(key)
        self._drop(key)
        return value

    def _drop(self, key: Key) -> None:
        _, num_bytes = self._kept.pop(key, (None, 0))
        self._num_bytes -= num_bytes


SLOT_PROMPTS: AppKey[BoundedStore[Hashable, bytes]] = AppKey("slot_prompts")
"""The last prompt of each slot number, packed, for clients that save and restore slots as with llama-server.

In this server any sequence may take any slot of the device, and the cache finds a prompt's state by its tokens. So a
slot's number stands for the last prompt that was sent with it.
"""
MOST_SLOT_PROMPTS, MOST_SLOT_BYTES = 1024, 4 << 20
