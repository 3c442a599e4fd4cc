"""The vocabulary in a GGUF file of llama.cpp: byte strings, escaped as in Python, and greedy longest match."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from rnn_engine.errors import InvalidRequestError, ModelError, TokenizerError
from rnn_engine.tensor_files.formats import open_source
from rnn_engine.tensor_files.gguf_file import GgufFile
from rnn_engine.tokenizer.base import END_OF_TEXT, check_text

_NORMAL: Final = 1  # the token type of llama.cpp that stands for text
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class ByteStringTokenizer:
    """A tokenizer that takes the longest of its byte strings, again and again."""

    name = "gguf"
    special_tokens: Mapping[str, int] = MappingProxyType({END_OF_TEXT: 0})

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """`pieces` has the bytes of every id; those that are empty stand for no text."""
        self.size = len(pieces)
        self._pieces = tuple(pieces)
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        data, start, ids = text.encode("utf-8"), 0, []
        while start < len(data):
            lengths = range(min(self._longest, len(data) - start), 0, -1)
            length = next((each for each in lengths if data[start : start + each] in self._ids), None)
            if length is None:
                raise InvalidRequestError("text", text, f"bytes of the vocabulary, which lacks {data[start]:#04x}")
            ids.append(self._ids[data[start : start + length]])
            start += length
        return ids

    def decode_bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.size else b""


def read_pieces(path: Path) -> list[bytes] | None:
    """Return the bytes of every id of a GGUF file's vocabulary; None where `path` is of another kind or has none.

    Raises TokenizerError where the vocabulary is damaged.
    """
    if path.suffix != ".gguf" or not path.is_file():
        return None
    try:
        source = open_source(path)
    except ModelError as error:
        raise TokenizerError(str(error)) from error
    source.close()
    if not isinstance(source, GgufFile) or source.metadata.get("tokenizer.ggml.model") != "rwkv":
        return None
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    types = source.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(types, np.ndarray) or len(tokens) != len(types):
        raise TokenizerError(f"{path}: expected tokenizer.ggml.tokens, and as many tokenizer.ggml.token_type")
    kinds = types.tolist()
    return [_unescape(token) if kind == _NORMAL else b"" for token, kind in zip(tokens, kinds, strict=True)]


def _unescape(token: bytes) -> bytes:
    """Return the bytes of a token as llama.cpp reads them."""
    return _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else _LETTERS.get(match[2], match[2]), token
    )
