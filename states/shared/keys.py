"""The names of what is kept in a shared store, and how the prefixes of a prompt are looked for.

A checkpoint has the hash of its tokens, of the root that they follow and of the model, and their number. To find the
longest one that begins a prompt without asking for each of its lengths, tokens are divided into blocks: for each
beginning of whole blocks there is a bitmap of the lengths that checkpoints have within the block after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from states.tokens import TOKEN_BYTES

BLOCK_TOKENS = 128

PREFIX = "rnn-engine:1"
"""What the names of all that is kept begin with."""
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens of a path after a beginning of whole blocks, fewer than a block at its end."""

    start: int  # tokens before it
    size: int  # tokens
    lengths_key: str


class PathKeys:
    """The keys along one path of tokens."""

    def __init__(self, model: str, root: str, tokens: bytes) -> None:
        """`model` is the fingerprint of whatever must be equal for a state to be continued; `tokens` are packed."""
        self._space = space_of(model)
        self._tokens = tokens
        self._start = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for text in (model, root):
            self._start.update(f"{len(text)}:{text}".encode())
        self.length = len(tokens) // TOKEN_BYTES

    def blocks(self) -> list[Block]:
        """All blocks of the path, from its beginning."""
        starts = range(0, self.length, BLOCK_TOKENS)
        digests = self._digests(starts)
        return [
            Block(start, min(BLOCK_TOKENS, self.length - start), f"{self._space}:lengths:{digest}")
            for start, digest in zip(starts, digests, strict=True)
        ]

    def checkpoints(self, lengths: Sequence[int]) -> list[str]:
        """The keys of checkpoints of these lengths, which ascend."""
        digests = self._digests(lengths)
        return [f"{self._space}:checkpoint:{digest}:{length}" for digest, length in zip(digests, lengths, strict=True)]

    def _digests(self, lengths: Sequence[int]) -> Iterator[str]:
        digest, done = self._start.copy(), 0
        for length in lengths:
            digest.update(self._tokens[done * TOKEN_BYTES : length * TOKEN_BYTES])
            done = length
            yield digest.hexdigest()


def bit_of(length: int) -> int:
    """The bit of a checkpoint's length in the bitmap of its block."""
    return (length - 1) % BLOCK_TOKENS


def lengths_in(block: Block, bitmap: bytes | None) -> Iterator[int]:
    """The lengths that a bitmap has within a block, ascending. Bit 0 is the highest of the first byte."""
    for bit in range(block.size if bitmap else 0):
        byte = bit // 8
        if bitmap and byte < len(bitmap) and bitmap[byte] & (0x80 >> bit % 8):
            yield block.start + bit + 1


def space_of(model: str) -> str:
    """What the names of all that is kept of a model begin with."""
    return f"{PREFIX}:{hashlib.blake2b(model.encode(), digest_size=8).hexdigest()}"
