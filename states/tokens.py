"""Token sequences as bytes, four a token, so that prefixes compare at the speed of memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

TOKEN_BYTES = array("I").itemsize


def pack(tokens: Sequence[int]) -> bytes:
    """Pack token ids, which must fit 32 bits without a sign."""
    return array("I", tokens).tobytes()


def unpack(packed: bytes) -> list[int]:
    """Return the token ids of a packed sequence."""
    tokens = array("I")
    tokens.frombytes(packed)
    return tokens.tolist()


def shared_tokens(first: bytes, second: bytes) -> int:
    """Return how many tokens two packed sequences have in common from their start."""
    length = min(len(first), len(second))
    first, second = first[:length], second[:length]
    if first == second:
        return length // TOKEN_BYTES
    # The highest differing bit of the two as big-endian numbers marks the first differing byte.
    difference = int.from_bytes(first, "big") ^ int.from_bytes(second, "big")
    same_bytes = length - (difference.bit_length() + 7) // 8
    return same_bytes // TOKEN_BYTES
