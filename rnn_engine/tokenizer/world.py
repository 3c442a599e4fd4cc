"""The World vocabulary, which most RWKV models use: 65529 byte strings, greedy longest match, and 0 as end of text.

The pyrwkv_tokenizer library encodes. It can't decode a token that is a part of a character, so the byte strings are
read here, from the library's own vocabulary file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyrwkv_tokenizer import RWKVTokenizer

from rnn_engine.tokenizer.base import END_OF_TEXT, check_text
from rnn_engine.tokenizer.byte_strings import read_vocabulary

WORLD_SIZE: Final = 65530  # ids 0..65529
WORLD_PADDED_SIZE: Final = 65536  # the rows that models have for them


class WorldTokenizer:
    """The World tokenizer."""

    name = "world"
    size = WORLD_SIZE
    special_tokens: Mapping[str, int] = MappingProxyType({END_OF_TEXT: 0})

    def __init__(self) -> None:
        self._library = RWKVTokenizer()
        self._pieces = read_vocabulary(Path(self._library.vocab_filepath))

    def encode(self, text: str) -> list[int]:
        check_text(text)
        ids: list[int] = self._library.encode(text)
        return ids

    def decode_bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.size else b""
