"""What was last asked of each slot number, for clients that save and restore slots as llama-server has them.

Any sequence may take any slot of the device here, and what is known of a prompt is found by its tokens. So a slot's
number stands for the last prompt that was sent with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

_MOST_TOKENS = 2**20
_MOST_PROMPTS = 1024


class PromptTable:
    """The tokens of prompts by any key, the last used ones as far as there is room."""

    def __init__(self, most_tokens: int = _MOST_TOKENS, most_prompts: int = _MOST_PROMPTS) -> None:
        self._most_tokens = most_tokens
        self._most_prompts = most_prompts
        self._num_tokens = 0
        self._prompts: OrderedDict[Hashable, tuple[int, ...]] = OrderedDict()

    def put(self, key: Hashable, tokens: Sequence[int]) -> None:
        """Keep the tokens of a prompt; those of others are dropped, the ones that were unused for longest first."""
        self.pop(key)
        self._prompts[key] = tuple(tokens)
        self._num_tokens += len(tokens)
        while self._num_tokens > self._most_tokens or len(self._prompts) > self._most_prompts:
            _, dropped = self._prompts.popitem(last=False)
            self._num_tokens -= len(dropped)

    def get(self, key: Hashable) -> tuple[int, ...] | None:
        """Return the tokens; None where none are kept."""
        if key not in self._prompts:
            return None
        self._prompts.move_to_end(key)
        return self._prompts[key]

    def pop(self, key: Hashable) -> int:
        """Forget a prompt and return how many tokens it had."""
        count = len(self._prompts.pop(key, ()))
        self._num_tokens -= count
        return count
