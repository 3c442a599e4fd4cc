"""Tokenizers for RWKV's World vocabulary, a Hugging Face tokenizer.json, a GGUF file's vocabulary, or none at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rnn_engine.errors import InvalidRequestError, TokenizerError
from rnn_engine.tokenizer.world import (
    WORLD_PADDED_SIZE,
    WORLD_SIZE,
    WorldTokenizer,
    read_gguf_tokenizer,
    read_vocabulary,
    tokenizer_of_pieces,
)
from rnn_engine.types import Tokenizer

__all__ = ["NoTokenizer", "Tokenizer", "load_tokenizer"]

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
        return tokenizer_of_pieces(path.name, read_vocabulary(path))
    from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer(path)
