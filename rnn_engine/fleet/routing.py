"""Which replica a request goes to: where most of its prompt was run before, unless too many requests are there.

A front remembers the prompts that it sent as hashes of their blocks, and so knows it at once when prompts that begin
alike arrive together. Knows neither Ray nor engines.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from states.tokens import TOKEN_BYTES, pack

BLOCK_TOKENS = 64
MOST_BLOCKS = 1 << 16  # that are remembered of each replica: the prompts of the last four million tokens

# What one more request at a replica costs a new one, as tokens of a prompt that would be run meanwhile.
RUNNING_TOKENS = 8  # it shares the steps
QUEUED_TOKENS = 32  # it has to end before

_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that takes requests."""

    name: str
    num_slots: int
    outstanding: int  # requests of this front that are there, running or queued


class PrefixRouter:
    """Chooses the replicas of requests, and remembers where their prompts were run."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self._most = most_blocks
        self._known: dict[str, OrderedDict[bytes, None]] = {}  # replica -> beginnings of prompts, last used last

    def choose(self, candidates: Sequence[Candidate], root: str, prompt: Sequence[int]) -> Candidate:
        """Return the candidate that is likely to have run `prompt` first.

        Of equal ones it is that with the fewest requests for each slot, and then the one that has run least. `root`
        tells prompts apart that start from other states, or whose cache is not shared. The prompt counts as run there
        from now on.
        """
        blocks = block_digests(root, prompt)

        def cost(candidate: Candidate) -> tuple[int, float, int]:
            known = self._known.get(candidate.name, ())
            kept = next((number for number in range(len(blocks), 0, -1) if blocks[number - 1] in known), 0)
            queued = max(candidate.outstanding + 1 - candidate.num_slots, 0)
            running = candidate.outstanding - max(queued - 1, 0)
            tokens = len(prompt) - kept * BLOCK_TOKENS + running * RUNNING_TOKENS + queued * QUEUED_TOKENS
            return tokens, candidate.outstanding / candidate.num_slots, len(known)

        chosen = min(candidates, key=cost)
        self._note(chosen.name, blocks)
        return chosen

    def forget(self, replica: str) -> None:
        """Forget what was run on a replica that is gone."""
        self._known.pop(replica, None)

    def _note(self, replica: str, blocks: Iterable[bytes]) -> None:
        known = self._known.setdefault(replica, OrderedDict())
        for block in blocks:
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._most:
            known.popitem(last=False)


def block_digests(root: str, prompt: Sequence[int]) -> list[bytes]:
    """Return for each beginning of `prompt` that has whole blocks a hash of it and of `root`."""
    digest = hashlib.blake2b(root.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES)
    packed = pack(prompt)
    size = BLOCK_TOKENS * TOKEN_BYTES
    found = []
    for end in range(size, len(packed) + 1, size):
        digest.update(packed[end - size : end])
        found.append(digest.digest())
    return found
