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
_PART_CHARACTERS: Final = 1 << 16  # for which the library holds the interpreter for some milliseconds


class WorldTokenizer:
    """The World tokenizer."""

    name = "world"
    size = WORLD_SIZE
    special_tokens: Mapping[str, int] = MappingProxyType({END_OF_TEXT: 0})

    def __init__(self, part_characters: int = _PART_CHARACTERS) -> None:
        """A longer text than `part_characters` is tokenized in parts, between which other threads run."""
        self._library = RWKVTokenizer()
        self._pieces = read_vocabulary(Path(self._library.vocab_filepath))
        self._longest = max(map(len, self._pieces))
        self._part_characters = max(part_characters, 4 * self._longest)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        ids: list[int] = []
        start = 0
        while len(text) - start > self._part_characters:
            part = self._library.encode(text[start : start + self._part_characters])
            start += self._part_characters - self._drop_end(part)
            ids += part
        ids += self._library.encode(text[start:])
        return ids

    def _drop_end(self, part: list[int]) -> int:
        """Drop the last tokens of a part, which more text may change; return how many whole characters they spell."""
        end = b""
        while len(end) < self._longest or end[0] & 0xC0 == 0x80:  # a byte within a character
            end = self._pieces[part.pop()] + end
        return len(end.decode())

    def decode_bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.size else b""
