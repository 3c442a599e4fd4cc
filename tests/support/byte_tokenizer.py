"""A tokenizer of single bytes: token b + 1 stands for byte b, and token 0, which ends a text, for none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """Follows the `Tokenizer` protocol."""

    name: str = "bytes"
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    size: int = 257

    def encode(self, text: str) -> list[int]:
        return [byte + 1 for byte in text.encode()]

    def decode_bytes(self, token: int) -> bytes:
        return bytes([token - 1]) if token > 0 else b""
