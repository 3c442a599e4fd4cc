"""The vocabulary in a GGUF file of llama.cpp: byte strings, escaped as in Python, and greedy longest match."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from rnn_engine.errors import ModelError, TokenizerError
from rnn_engine.tensor_files.formats import open_source
from rnn_engine.tensor_files.gguf_file import GgufFile

_NORMAL: Final = 1  # the token type of llama.cpp that stands for text
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


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
