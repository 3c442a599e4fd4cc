"""A model's vocabulary in the forms that the grammar libraries require."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Final, Protocol, Self, cast

from llguidance import LLTokenizer, TokenizerWrapper

from rnn_engine.grammar.grammar import GrammarKind

_IS_LOADED = "torch" in sys.modules
if not _IS_LOADED:
    sys.modules["torch"] = cast(ModuleType, None)  # makes importing torch fail, which kbnf handles
try:
    import kbnf as kbnf
finally:
    if not _IS_LOADED:
        del sys.modules["torch"]

END: Final = 0  # the token that ends a text

WORD_SLICES: Final = ("[a-z]{1,10}", "[a-zA-Z]{1,10}", "[a-zA-Z0-9 ]{1,10}")
"""Sets of tokens that llguidance allows as a whole if a grammar allows each of them, besides those for JSON strings.

Without them, counted repetitions such as `[a-z]{1,200}` take several times as long, since every token is tried.
"""


class _Tokenizer(Protocol):
    def encode(self, text: str, /) -> list[int]: ...

    def decode_bytes(self, token: int, /) -> bytes: ...


class Vocabulary:
    """The bytes of each token, for grammars, which allow none without bytes. Token 0 ends a text."""

    def __init__(self, pieces: Sequence[bytes], encode: Callable[[str], Sequence[int]] | None = None) -> None:
        """Make a vocabulary of `pieces` by id. Without `encode`, texts are divided into the longest pieces."""
        self.pieces = (b"", *pieces[1:])
        self.encode = encode or _LongestPieces(self.pieces)

    @classmethod
    def of(cls, tokenizer: _Tokenizer, size: int) -> Self:
        return cls([tokenizer.decode_bytes(token) for token in range(size)], tokenizer.encode)

    @property
    def size(self) -> int:
        return len(self.pieces)

    @property
    def has_text(self) -> bool:
        return any(self.pieces)

    def prepare(self, kind: GrammarKind) -> None:
        """Convert the vocabulary for the library that compiles grammars of `kind`, before a grammar needs it."""
        _ = self.for_kbnf if kind == "kbnf" else self.for_guidance

    @cached_property
    def for_guidance(self) -> LLTokenizer:
        """The vocabulary in the library llguidance's form. The first access takes some tenths of a second."""
        slices = [*WORD_SLICES, *LLTokenizer.general_slices()]
        return LLTokenizer(TokenizerWrapper(_GuidanceTokenizer(self)), slices=slices)

    @cached_property
    def for_kbnf(self) -> kbnf.Vocabulary:
        """The vocabulary in the library kbnf's form. The first access takes some tenths of a second."""
        pieces = {token: piece for token, piece in enumerate(self.pieces) if piece}
        tokens = {token: kbnf.Token(piece) for token, piece in pieces.items()}
        return kbnf.Vocabulary(tokens, {token: repr(piece) for token, piece in pieces.items()})


class _GuidanceTokenizer:
    """An adapter that gives a `Vocabulary` the attributes that the library llguidance requires of a tokenizer."""

    eos_token_id = END
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.pieces
        self.special_token_ids = [token for token, piece in enumerate(vocabulary.pieces) if not piece]
        self._encode = vocabulary.encode

    def __call__(self, text: bytes) -> list[int]:
        return list(self._encode(text.decode()))


class _LongestPieces:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        data, start, ids = text.encode(), 0, []
        while start < len(data):
            lengths = range(min(self._longest, len(data) - start), 0, -1)
            length = next((each for each in lengths if data[start : start + each] in self._ids), None)
            if length is None:
                raise ValueError(f"no token begins with the byte {data[start]:#04x}")
            ids.append(self._ids[data[start : start + length]])
            start += length
        return ids
