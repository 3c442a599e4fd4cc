"""Values that are kept in memory from one request to the next, counted in bytes."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from aiohttp import web

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class KeptUsage:
    """What values take that are kept, and how many have given way since the start."""

    values: int
    num_bytes: int
    evictions: int

    @classmethod
    def of_all(cls, stores: Iterable[BoundedStore[Any, Any]]) -> Self:
        """Return what several stores take together."""
        usages = [store.usage for store in stores]
        return cls(
            sum(usage.values for usage in usages),
            sum(usage.num_bytes for usage in usages),
            sum(usage.evictions for usage in usages),
        )


class BoundedStore(Generic[Key, Value]):
    """Keeps values by key, bounded in number and bytes; those that were unused for longest give way.

    It has no lock: whoever shares it between threads brings one.
    """

    def __init__(self, most_values: int, most_bytes: int) -> None:
        self._most_values = most_values
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()  # the one unused for longest first
        self._evictions = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def usage(self) -> KeptUsage:
        return KeptUsage(len(self._kept), self.num_bytes, self._evictions)

    @property
    def oldest(self) -> Value | None:
        """Return the value that was unused for longest; None where there is none."""
        return next((value for value, _ in self._kept.values()), None)

    def put(self, key: Key, value: Value, num_bytes: int) -> list[Value]:
        """Keep a value, in place of the one with the same key; return those that give way, perhaps itself."""
        self.pop(key)
        self._kept[key] = value, num_bytes
        self.num_bytes += num_bytes
        evicted = []
        while len(self._kept) > self._most_values or self.num_bytes > self._most_bytes:
            evicted.append(self.evict())
        return evicted

    def get(self, key: Key) -> Value | None:
        """Return a value; None where it is not kept. It is not used by that."""
        kept = self._kept.get(key)
        return None if kept is None else kept[0]

    def use(self, key: Key) -> Value | None:
        """Return a value as `get` does, and let it give way as the last."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self.get(key)

    def pop(self, key: Key) -> Value | None:
        """Remove a value and return it; None where it is not kept."""
        if key not in self._kept:
            return None
        value, num_bytes = self._kept.pop(key)
        self.num_bytes -= num_bytes
        return value

    def evict(self) -> Value:
        """Remove the value that was unused for longest, and return it. Raises KeyError where there is none."""
        _, (value, num_bytes) = self._kept.popitem(last=False)
        self.num_bytes -= num_bytes
        self._evictions += 1
        return value


# What was last asked of each slot number, for clients that save and restore slots as llama-server has them.
#
# Any sequence may take any slot of the device here, and what is known of a prompt is found by its tokens. So a slot's
# number stands for the last prompt that was sent with it.

_MOST_TOKENS = 2**20
_MOST_PROMPTS = 1024
_TOKEN_TYPE = "I"


def pack(tokens: Sequence[int]) -> array[int]:
    """Return tokens as they are kept."""
    return array(_TOKEN_TYPE, tokens)


class PromptTable:
    """The tokens of prompts by any key, the last used ones as far as there is room."""

    def __init__(self, most_tokens: int = _MOST_TOKENS, most_prompts: int = _MOST_PROMPTS) -> None:
        most_bytes = most_tokens * array(_TOKEN_TYPE).itemsize
        self._prompts: BoundedStore[Hashable, array[int]] = BoundedStore(most_prompts, most_bytes)

    def put(self, key: Hashable, tokens: Sequence[int]) -> None:
        """Keep the tokens of a prompt; those of others are dropped, the ones that were unused for longest first."""
        packed = pack(tokens)
        self._prompts.put(key, packed, len(packed) * packed.itemsize)

    def get(self, key: Hashable) -> tuple[int, ...] | None:
        """Return the tokens; None where none are kept."""
        packed = self._prompts.use(key)
        return None if packed is None else tuple(packed)

    def pop(self, key: Hashable) -> int:
        """Forget a prompt and return how many tokens it had."""
        return len(self._prompts.pop(key) or ())

    @property
    def usage(self) -> KeptUsage:
        return self._prompts.usage


# What the application carries for its handlers: the engine, the settings and the count of running requests.

SLOT_PROMPTS = web.AppKey("slot_prompts", PromptTable)
