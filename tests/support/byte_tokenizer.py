"""A tokenizer of single bytes: token b + 1 stands for byte b. Token 0, which ends a text, and others stand for none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rnn_engine.errors import check_text


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """A `Tokenizer` of single bytes."""

    name: str = "bytes"
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    size: int = 257

    def encode(self, text: str) -> list[int]:
        check_text(text)
        return [byte + 1 for byte in text.encode()]

    def decode_bytes(self, token: int) -> bytes:
        return bytes([token - 1]) if 0 < token < self.size else b""
