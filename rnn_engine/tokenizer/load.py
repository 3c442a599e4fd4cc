"""Choose and load the tokenizer of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rnn_engine.errors import TokenizerError
from rnn_engine.tokenizer.base import Tokenizer
from rnn_engine.tokenizer.byte_strings import ByteStringTokenizer, read_vocabulary
from rnn_engine.tokenizer.gguf import read_pieces
from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer
from rnn_engine.tokenizer.none import NoTokenizer
from rnn_engine.tokenizer.world import WORLD_PADDED_SIZE, WORLD_SIZE, WorldTokenizer

_FILE_NAME: Final = "tokenizer.json"
_VOCABULARIES: Final = ("rwkv_vocab_v20230424.txt", "vocab.txt")  # as folders that are made for transformers have them


def load_tokenizer(choice: str, model_path: Path, vocab_size: int) -> Tokenizer:
    """Load the tokenizer that `choice` names: auto, world, none, or the path of a tokenizer.json or a vocabulary.

    `auto` takes the vocabulary of a GGUF file, else a tokenizer.json in the model's folder, else a vocabulary in the
    form of World's file there, else World where the model's vocabulary is as large as World's, else none. Raises
    TokenizerError where the file can't be read or the vocabulary does not fit the model.
    """
    match choice:
        case "auto":
            tokenizer = _find(model_path, vocab_size)
        case "world":
            tokenizer = WorldTokenizer()
        case "none":
            tokenizer = NoTokenizer(vocab_size, "none was asked for")
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
        f"its folder has no {_FILE_NAME}, and its vocabulary of {vocab_size} is not World's "
        f"({WORLD_SIZE} to {WORLD_PADDED_SIZE})",
    )


def _from_file(choice: str) -> Tokenizer:
    path = Path(choice)
    if not path.is_file():
        raise TokenizerError(f"tokenizer {choice!r}: no such file; expected auto, world, none or a {_FILE_NAME}")
    return _read(path)


def _read(path: Path) -> Tokenizer:
    if path.suffix == ".txt":
        return _of_pieces(path.name, read_vocabulary(path))
    return HuggingFaceTokenizer(path)


def _of_pieces(name: str, pieces: Sequence[bytes]) -> Tokenizer:
    """Return World's tokenizer where its vocabulary is that of World, which is faster."""
    world = WorldTokenizer()
    same = all(piece == world.decode_bytes(token) for token, piece in enumerate(pieces))
    return world if same and len(pieces) >= world.size else ByteStringTokenizer(name, pieces)
