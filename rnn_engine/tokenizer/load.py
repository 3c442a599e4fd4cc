"""Find and load the tokenizer of a model, or the one that a user chose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rnn_engine.errors import InvalidRequestError, ModelError, TokenizerError
from rnn_engine.tensor_files.formats import GgufParts, open_source
from rnn_engine.tensor_files.gguf_file import GgufFile
from rnn_engine.tokenizer.world import (
    WORLD_PADDED_SIZE,
    WORLD_SIZE,
    ByteStringTokenizer,
    WorldTokenizer,
    read_vocabulary,
)
from rnn_engine.types import Tokenizer

# The vocabulary in a GGUF file of llama.cpp: byte strings, escaped as in Python, for greedy longest match.

_NORMAL: Final = 1  # llama.cpp's type of tokens with text
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def read_pieces(path: Path) -> list[bytes] | None:
    """Return the bytes of every token id in a GGUF file's vocabulary; b"" for an id without text.

    Returns None if `path` is no GGUF file, or has no vocabulary of byte strings. Raises TokenizerError if the file or
    its vocabulary is damaged.
    """
    if path.suffix != ".gguf" or not path.is_file():
        return None
    try:
        source = open_source(path)
    except ModelError as error:
        raise TokenizerError(str(error)) from error
    source.close()
    if not isinstance(source, GgufFile | GgufParts) or source.metadata.get("tokenizer.ggml.model") != "rwkv":
        return None
    tokens = source.metadata.get("tokenizer.ggml.tokens")
    types = source.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list) or not isinstance(types, np.ndarray) or len(tokens) != len(types):
        raise TokenizerError(
            f"{path}: expected tokenizer.ggml.tokens, and a tokenizer.ggml.token_type for each of them"
        )
    kinds = types.tolist()
    return [_unescape(token) if kind == _NORMAL else b"" for token, kind in zip(tokens, kinds, strict=True)]


def _unescape(token: bytes) -> bytes:
    """Return a token's bytes, given the escaped form in which a GGUF file of llama.cpp stores them."""
    return _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else _LETTERS.get(match[2], match[2]), token
    )


# The tokenizer of a model without one: clients send and receive token ids.


@dataclass(frozen=True, slots=True)
class NoTokenizer:
    """The tokenizer of a model without one: it rejects every text, so clients must send token ids.

    `reason` says in the error why there is no tokenizer.
    """

    size: int
    reason: str

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return {}

    @property
    def name(self) -> str:
        return "none"

    def encode(self, text: str) -> list[int]:
        message = f"the model has no tokenizer, so it takes token ids and no text: {self.reason}"
        raise InvalidRequestError("text", text, "token ids", message)

    def decode_bytes(self, _token: int) -> bytes:
        return b""


_FILE_NAME: Final = "tokenizer.json"
_VOCABULARIES: Final = ("rwkv_vocab_v20230424.txt", "vocab.txt")  # as in folders made for transformers


def load_tokenizer(choice: str, model_path: Path, vocab_size: int) -> Tokenizer:
    """Load the tokenizer that `choice` selects: auto, world, none, or the path of a tokenizer.json or a vocabulary.

    `auto` selects the first of these that exists: the vocabulary of a GGUF file, a tokenizer.json in the model's
    folder, a vocabulary file there in the format of World's. Otherwise it selects World if the model's vocabulary is as
    large as World's, or else none. Raises TokenizerError if the file can't be read, or if the vocabulary is larger than
    `vocab_size`, the model's.
    """
    match choice:
        case "auto":
            tokenizer = _find(model_path, vocab_size)
        case "world":
            tokenizer = WorldTokenizer()
        case "none":
            tokenizer = NoTokenizer(vocab_size, "none was chosen")
        case _:
            tokenizer = _from_file(choice)
    if tokenizer.size > vocab_size:
        raise TokenizerError(
            f"the tokenizer {tokenizer.name} has {tokenizer.size} ids and the model's vocabulary {vocab_size}; "
            f"expected at most {vocab_size}, or the choice none to work with token ids"
        )
    return tokenizer


def _find(model_path: Path, vocab_size: int) -> Tokenizer:
    pieces = read_pieces(model_path)
    if pieces is not None:
        return _of_pieces("gguf", pieces)
    folder = model_path if model_path.is_dir() else model_path.parent
    for name in (_FILE_NAME, *_VOCABULARIES):
        if (folder / name).is_file():
            return _read(folder / name)
    if WORLD_SIZE <= vocab_size <= WORLD_PADDED_SIZE:
        return WorldTokenizer()
    return NoTokenizer(
        vocab_size,
        f"its folder has no {_FILE_NAME}, and its vocabulary of {vocab_size} is not World's ({WORLD_SIZE} to "
        f"{WORLD_PADDED_SIZE})",
    )


def _from_file(choice: str) -> Tokenizer:
    path = Path(choice)
    if not path.is_file():
        raise TokenizerError(f"tokenizer {choice!r}: no such file; expected auto, world, none or a {_FILE_NAME}")
    return _read(path)


def _read(path: Path) -> Tokenizer:
    if path.suffix == ".txt":
        return _of_pieces(path.name, read_vocabulary(path))
    from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer(path)


def _of_pieces(name: str, pieces: Sequence[bytes]) -> Tokenizer:
    """Return a tokenizer for a vocabulary of byte strings, `pieces`: the bytes of every token id.

    It is World's tokenizer, which is faster, if the vocabulary is World's.
    """
    world = WorldTokenizer()
    same = all(piece == world.decode_bytes(token) for token, piece in enumerate(pieces))
    return world if same and len(pieces) >= world.size else ByteStringTokenizer(name, pieces)
