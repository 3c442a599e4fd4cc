"""What was last asked of each slot number, for clients that save and restore slots as llama-server has them.

Any sequence may take any slot of the device here, and what is known of a prompt is found by its tokens. So a slot's
number stands for the last prompt that was sent with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from server.state.bounded import BoundedStore, KeptUsage

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
