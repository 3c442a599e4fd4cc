"""The keys of checkpoints in a shared store, and how the store finds the longest checkpoint of a prompt.

The key of a checkpoint has a hash of the model, the root and the tokens, and the number of tokens. Tokens are divided
into blocks, so that the longest checkpoint of a prompt is found without asking for each possible length. For each
prefix of whole blocks there is a bitmap of the lengths of checkpoints within the next block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rnn_engine_states.tokens import TOKEN_BYTES

BLOCK_TOKENS = 128

PREFIX = "rnn-engine:1"
"""The prefix of every key in the store."""
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block of a path, the last perhaps shorter, and the key of its bitmap of checkpoints."""

    start: int  # tokens before it
    size: int  # tokens
    lengths_key: str


class PathKeys:
    """Computes the shared store's keys of the checkpoints and bitmaps along one path of tokens."""

    def __init__(self, model: str, root: str, tokens: bytes) -> None:
        """Compute the keys of packed `tokens` under `root`, for all settings with the fingerprint `model`."""
        self._space = space_of(model)
        self.root = root
        self.tokens = tokens
        self._start = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for text in (model, root):
            self._start.update(f"{len(text)}:{text}".encode())
        self.length = len(tokens) // TOKEN_BYTES

    def blocks(self) -> list[StoredBlock]:
        """Return all blocks of the token path with their keys, in order."""
        starts = range(0, self.length, BLOCK_TOKENS)
        digests = self._digests(starts)
        return [
            StoredBlock(start, min(BLOCK_TOKENS, self.length - start), f"{self._space}:lengths:{digest}")
            for start, digest in zip(starts, digests, strict=True)
        ]

    def checkpoints(self, lengths: Sequence[int]) -> list[str]:
        """Return the keys of the checkpoints with these ascending lengths in tokens."""
        digests = self._digests(lengths)
        return [f"{self._space}:checkpoint:{digest}:{length}" for digest, length in zip(digests, lengths, strict=True)]

    def _digests(self, lengths: Sequence[int]) -> Iterator[str]:
        digest, done = self._start.copy(), 0
        for length in lengths:
            digest.update(self.tokens[done * TOKEN_BYTES : length * TOKEN_BYTES])
            done = length
            yield digest.hexdigest()


def bit_of(length: int) -> int:
    """Return which bit of its block's bitmap stands for a checkpoint of `length` tokens."""
    return (length - 1) % BLOCK_TOKENS


def lengths_in(block: StoredBlock, bitmap: bytes | None) -> Iterator[int]:
    """Yield the lengths, ascending, that a block's bitmap lists; bit 0 is the highest of the first byte."""
    for bit in range(block.size if bitmap else 0):
        byte = bit // 8
        if bitmap and byte < len(bitmap) and bitmap[byte] & (0x80 >> bit % 8):
            yield block.start + bit + 1


def space_of(model: str) -> str:
    """Return the prefix of all keys of a model in the shared store, made of its fingerprint `model`."""
    return f"{PREFIX}:{hashlib.blake2b(model.encode(), digest_size=8).hexdigest()}"
