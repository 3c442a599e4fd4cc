"""Tokenize text by greedy longest match, with RWKV's World vocabulary or another vocabulary of byte strings.

The pyrwkv_tokenizer library encodes. It can't decode a token that is only a part of a character, so the byte strings
are read here, from the library's own vocabulary file.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from pyrwkv_tokenizer import RWKVTokenizer

from rnn_engine.errors import InvalidRequestError, ModelError, TokenizerError, check_text
from rnn_engine.files import read_text
from rnn_engine.pauses import pause
from rnn_engine.tensor_files.formats import gguf_metadata
from rnn_engine.tensor_files.source import show
from rnn_engine.types import Tokenizer, end_of_text

END_OF_TEXT: Final = "<|rwkv_tokenizer_end_of_text|>"  # the name of token 0 in Hugging Face's tokenizers

_MOST_BYTES: Final = 16 << 20  # World's file has 1 MB
_MOST_TOKENS: Final = 1 << 20
_LITERAL: Final = r"""b?(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
_LINE: Final = re.compile(rf"([0-9]{{1,7}}) ({_LITERAL}) ([0-9]{{1,7}})\r?")


class ByteStringTokenizer:
    """A tokenizer that repeatedly matches the longest byte string of its vocabulary (greedy longest match)."""

    special_tokens: Mapping[str, int] = MappingProxyType({END_OF_TEXT: 0})

    def __init__(self, name: str, pieces: Sequence[bytes]) -> None:
        """Create a tokenizer; `pieces` has the bytes of every token id, b"" for an id without text."""
        self.name = name
        self.size = len(pieces)
        self._pieces = tuple(pieces)
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._lengths: dict[bytes, list[int]] = {}  # of the pieces with the same first two bytes, longest first
        for length, beginning in sorted({(len(piece), piece[:2]) for piece in self._ids}, reverse=True):
            self._lengths.setdefault(beginning, []).append(length)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        data, start, ids = text.encode("utf-8"), 0, []
        while start < len(data):
            lengths = (*self._lengths.get(data[start : start + 2], ()), 1)
            pieces = (data[start : start + length] for length in lengths)
            piece = next((each for each in pieces if each in self._ids), None)
            if piece is None:
                raise InvalidRequestError(
                    "text", text, f"text whose bytes are all in the vocabulary, which lacks {data[start]:#04x}"
                )
            ids.append(self._ids[piece])
            start += len(piece)
        return ids

    def decode_bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.size else b""


def read_vocabulary(path: Path) -> list[bytes]:
    """Read a vocabulary file in the format of World's, and return the bytes of every token id.

    The file has a line for each id, with a Python literal and its length in bytes. An id without a line has no text,
    b"". Raises TokenizerError if the file can't be read or has another format.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise TokenizerError(f"{path} has {path.stat().st_size} bytes; expected at most {_MOST_BYTES}")
        text = read_text(path)
    except OSError as error:
        raise TokenizerError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not valid UTF-8: {error}") from error
    lines = text.removesuffix("\n").split("\n")
    matches = [_LINE.fullmatch(line) for line in lines]
    if None in matches:
        number = matches.index(None)
        raise TokenizerError(
            f"{path}, line {number + 1}: {show(lines[number])}; expected an id, a Python literal and its length"
        )
    return _in_order(path, {int(match[1]): (match[2], int(match[3])) for match in matches if match}, len(lines))


def _in_order(path: Path, entries: Mapping[int, tuple[str, int]], num_lines: int) -> list[bytes]:
    if len(entries) < num_lines or max(entries) >= _MOST_TOKENS:
        raise TokenizerError(f"{path} has an id twice, or one above {_MOST_TOKENS - 1}")
    pieces = [b""] * (max(entries) + 1)
    for token, (literal, length) in entries.items():
        try:
            piece = pieces[token] = _evaluate(literal)
        except (SyntaxError, ValueError) as error:
            what = "no form in UTF-8" if isinstance(error, UnicodeEncodeError) else "a literal that Python can't read"
            raise TokenizerError(f"{path}: token {token} has {what}: {error}") from error
        if len(piece) != length:
            raise TokenizerError(f"{path}: token {token} has {len(piece)} bytes; expected {length}, as its line says")
    return pieces


def _evaluate(literal: str) -> bytes:
    is_plain = literal.isprintable() and "\\" not in literal and not literal.startswith("b")
    value = literal[1:-1] if is_plain else ast.literal_eval(literal)  # which takes ten times as long
    return value.encode() if isinstance(value, str) else value


WORLD_SIZE: Final = 65530  # ids 0..65529
WORLD_PADDED_SIZE: Final = 65536  # the rows of models for these ids
_library_of_world: Final = cache(RWKVTokenizer)  # what tokenizers share, and only read
_pieces_of_world: Final = cache(read_vocabulary)
_PART_CHARACTERS: Final = 1 << 16  # for these, the library holds the interpreter lock for some milliseconds


class WorldTokenizer:
    """The tokenizer for RWKV's World vocabulary, which encodes with the pyrwkv_tokenizer library."""

    name = "world"
    size = WORLD_SIZE
    special_tokens: Mapping[str, int] = MappingProxyType({END_OF_TEXT: 0})

    def __init__(self, part_characters: int = _PART_CHARACTERS) -> None:
        """Load the World vocabulary. Texts longer than `part_characters` are tokenized in parts, for other threads."""
        self._library = _library_of_world()
        self._pieces = _pieces_of_world(Path(self._library.vocab_filepath))
        self._longest = max(map(len, self._pieces))
        self._part_characters = max(part_characters, 4 * self._longest)

    def encode(self, text: str) -> list[int]:
        check_text(text)
        ids: list[int] = []
        start = 0
        while len(text) - start > self._part_characters:
            pause()
            part = self._library.encode(text[start : start + self._part_characters])
            start += self._part_characters - self._drop_end(part)
            ids += part
        ids += self._library.encode(text[start:])
        return ids

    def _drop_end(self, part: list[int]) -> int:
        """Remove the last tokens, which later text may change; return the characters that the next part begins with."""
        end = b""
        while len(end) < self._longest or end[0] & 0xC0 == 0x80:  # a byte within a character
            end = self._pieces[part.pop()] + end
        return len(end.decode())

    def decode_bytes(self, token: int) -> bytes:
        return self._pieces[token] if 0 <= token < self.size else b""


def tokenizer_of_pieces(name: str, pieces: Sequence[bytes]) -> Tokenizer:
    """Return a tokenizer for the bytes of every id; World's, which is faster, if they are World's."""
    world = WorldTokenizer()
    same = all(piece == world.decode_bytes(token) for token, piece in enumerate(pieces))
    return world if same and len(pieces) >= world.size else ByteStringTokenizer(name, pieces)


# The vocabulary in a GGUF file, read and written.
#
# llama.cpp has byte strings, escaped as in Python, for greedy longest match, and the tokens and merges of a byte-level
# BPE. Any other tokenizer.json is stored whole, under the key that GGUF has for it; llama.cpp does not read it.

_NORMAL: Final = 1  # llama.cpp's type of tokens with text
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
UNUSED: Final = 5  # the type of ids that only fill a vocabulary
_TYPES_OF_ADDED: Final = {_CONTROL: True, _USER_DEFINED: False}  # of added tokens -> if they are special
_WHOLE: Final = "tokenizer.huggingface.json"  # the key of a whole tokenizer.json
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
        whole = metadata.get(_WHOLE)
        if not isinstance(whole, str):
            return None
        from rnn_engine.tokenizer.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer(path, text=whole)
    if not isinstance(tokens, list) or not isinstance(types, np.ndarray) or len(tokens) != len(types):
        raise TokenizerError(
            f"{path}: expected tokenizer.ggml.tokens, and a tokenizer.ggml.token_type for each of them"
        )
    kinds = types.tolist()
    if kind == "rwkv":
        pieces = [_unescape(token) if kind == _NORMAL else b"" for token, kind in zip(tokens, kinds, strict=True)]
        return tokenizer_of_pieces("gguf", pieces)
    from rnn_engine.tokenizer.huggingface import SPLITS, Bpe, HuggingFaceTokenizer

    split, merges = metadata.get("tokenizer.ggml.pre"), metadata.get("tokenizer.ggml.merges")
    if not isinstance(split, str) or split not in SPLITS:
        raise TokenizerError(f"{path}: tokenizer.ggml.pre is {split!r}; expected one of {', '.join(SPLITS)}")
    if not isinstance(merges, list):
        raise TokenizerError(f"{path}: expected tokenizer.ggml.merges")
    texts = [
        "" if kind == UNUSED else token.decode(errors="replace") for token, kind in zip(tokens, kinds, strict=True)
    ]
    added = {token: _TYPES_OF_ADDED[kind] for token, kind in enumerate(kinds) if kind in _TYPES_OF_ADDED}
    bpe = Bpe(split, texts, added, [merge.decode(errors="replace") for merge in merges])
    return HuggingFaceTokenizer(path, text=json.dumps(bpe.settings))


def _unescape(token: bytes) -> bytes:
    """Return a token's bytes, given the escaped form in which a GGUF file of llama.cpp stores them."""
    return _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] else _LETTERS.get(match[2], match[2]), token
    )


def gguf_vocabulary(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """Return the metadata with which a GGUF file has the vocabulary of `tokenizer`, for a model of `size` tokens.

    tokenizer.ggml.model is none if llama.cpp can't read it.
    """
    if isinstance(tokenizer, WorldTokenizer | ByteStringTokenizer):
        pieces = [tokenizer.decode_bytes(token) for token in range(size)]
        kinds = [_NORMAL if piece else UNUSED for piece in pieces]
        tokens = [repr(piece)[2:-1].encode() for piece in pieces]
        if not pieces[0]:
            tokens[0], kinds[0] = b"<s>", _CONTROL
        return _vocabulary("rwkv", tokens, kinds, 0)
    from rnn_engine.tokenizer.huggingface import Bpe, HuggingFaceTokenizer

    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return {"tokenizer.ggml.model": "none"}
    text = tokenizer.to_json()
    bpe = Bpe.find(text, size)
    if bpe is None:
        return {"tokenizer.ggml.model": "none", _WHOLE: text}
    types = {special: kind for kind, special in _TYPES_OF_ADDED.items()}
    kinds = [_NORMAL if piece else UNUSED for piece in bpe.tokens]
    for token, special in bpe.added.items():
        kinds[token] = types[special]
    return {
        **_vocabulary("gpt2", [piece.encode() for piece in bpe.tokens], kinds, end_of_text(tokenizer.special_tokens)),
        "tokenizer.ggml.pre": bpe.split,
        "tokenizer.ggml.merges": [merge.encode() for merge in bpe.merges],
        "tokenizer.ggml.add_bos_token": False,
    }


def _vocabulary(model: str, tokens: list[bytes], kinds: list[int], end: int) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [token or b"[PAD%d]" % number for number, token in enumerate(tokens)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
    }
