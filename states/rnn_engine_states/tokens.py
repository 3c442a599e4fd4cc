"""Token sequences packed as bytes, four bytes a token, so that common prefixes are found by comparing bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rnn_engine.errors import TokenIds

TOKEN_BYTES = array("I").itemsize


def pack(tokens: Sequence[int]) -> bytes:
    """Return token ids as bytes, four bytes a token. Each id must fit an unsigned 32-bit integer."""
    return tokens.packed if isinstance(tokens, TokenIds) else array("I", tokens).tobytes()


def unpack(packed: bytes) -> list[int]:
    """Return the token ids of a packed sequence."""
    tokens = array("I")
    tokens.frombytes(packed)
    return tokens.tolist()


def shared_tokens(first: bytes, second: bytes) -> int:
    """Return the length in tokens of the longest common prefix of two packed sequences."""
    length = min(len(first), len(second))
    first, second = first[:length], second[:length]
    if first == second:
        return length // TOKEN_BYTES
    # The highest differing bit of the two as big-endian numbers marks the first differing byte.
    difference = int.from_bytes(first, "big") ^ int.from_bytes(second, "big")
    same_bytes = length - (difference.bit_length() + 7) // 8
    return same_bytes // TOKEN_BYTES
