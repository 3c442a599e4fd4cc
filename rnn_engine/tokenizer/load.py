"""Find and load the tokenizer of a model, or the one that a user chose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rnn_engine.errors import InvalidRequestError, ModelError, TokenizerError
from rnn_engine.tensor_files.formats import gguf_metadata
from rnn_engine.tokenizer.world import (
    WORLD_PADDED_SIZE,
    WORLD_SIZE,
    ByteStringTokenizer,
    WorldTokenizer,
    read_vocabulary,
)
from rnn_engine.types import Tokenizer

# The vocabulary in a GGUF file of llama.cpp: byte strings, escaped as in Python, for greedy longest match, or the
# tokens and merges of a byte-level BPE.

_NORMAL: Final = 1  # llama.cpp's type of tokens with text
_UNUSED: Final = 5  # the type of ids that only fill a vocabulary
_TYPES_OF_ADDED: Final = {3: True, 4: False}  # control tokens, and others that users have added -> if they are special
_SPLITS: Final = ("qwen2", "deepseek-r1-qwen")  # llama.cpp's names of Qwen2's rule that divides a text into words
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def read_gguf_tokenizer(path: Path) -> Tokenizer | None:
    """Return a GGUF file's tokenizer, or None. Raises TokenizerError if it is damaged or divides texts otherwise."""
    try:
        metadata = gguf_metadata(path)
    except ModelError as error:
        raise TokenizerError(str(error)) from error
    kind, tokens, types = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "tokens", "token_type"))
    if kind not in ("rwkv", "gpt2"):
        return None
    if not isinstance(tokens, list) or not isinstance(types, np.ndarray) or len(tokens) != len(types):
        raise TokenizerError(
            f"{path}: expected tokenizer.ggml.tokens, and a tokenizer.ggml.token_type for each of them"
        )
    kinds = types.tolist()
    if kind == "rwkv":
        pieces = [_unescape(token) if kind == _NORMAL else b"" for token, kind in zip(tokens, kinds, strict=True)]
        return _of_pieces("gguf", pieces)
    split, merges = metadata.get("tokenizer.ggml.pre"), metadata.get("tokenizer.ggml.merges")
    if split not in _SPLITS:
        raise TokenizerError(f"{path}: tokenizer.ggml.pre is {split!r}; expected one of {', '.join(_SPLITS)}")
    if not isinstance(merges, list):
        raise TokenizerError(f"{path}: expected tokenizer.ggml.merges")
    from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer, bpe_settings

    texts = [
        "" if kind == _UNUSED else token.decode(errors="replace") for token, kind in zip(tokens, kinds, strict=True)
    ]
    added = {token: _TYPES_OF_ADDED[kind] for token, kind in enumerate(kinds) if kind in _TYPES_OF_ADDED}
    settings = bpe_settings(texts, added, [merge.decode(errors="replace") for merge in merges])
    return HuggingFaceTokenizer(path, text=json.dumps(settings))


def _unescape(token: bytes) -> bytes:
    """Return a token's bytes, given the escaped form in which a GGUF file of llama.cpp stores them."""
    return _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else _LETTERS.get(match[2], match[2]), token
    )


# The tokenizer of a model without one: clients send and receive token ids.


@dataclass(frozen=True, slots=True)
class NoTokenizer:
    """A model's tokenizer if it has none, for `reason`: it rejects every text, so clients send token ids."""

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
        case _ if Path(choice).is_file():
            tokenizer = _read(Path(choice))
        case _:
            raise TokenizerError(f"tokenizer {choice!r}: no such file; expected auto, world, none or a {_FILE_NAME}")
    if tokenizer.size > vocab_size:
        raise TokenizerError(
            f"the tokenizer {tokenizer.name} has {tokenizer.size} ids and the model's vocabulary {vocab_size}; "
            f"expected at most {vocab_size}, or the choice none to work with token ids"
        )
    return tokenizer


def _find(model_path: Path, vocab_size: int) -> Tokenizer:
    tokenizer = read_gguf_tokenizer(model_path)
    if tokenizer is not None:
        return tokenizer
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


def _read(path: Path) -> Tokenizer:
    if path.suffix == ".txt":
        return _of_pieces(path.name, read_vocabulary(path))
    from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer(path)


def _of_pieces(name: str, pieces: Sequence[bytes]) -> Tokenizer:
    """Return a tokenizer for the bytes of every id; World's, which is faster, if they are World's."""
    world = WorldTokenizer()
    same = all(piece == world.decode_bytes(token) for token, piece in enumerate(pieces))
    return world if same and len(pieces) >= world.size else ByteStringTokenizer(name, pieces)
