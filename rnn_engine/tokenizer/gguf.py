"""The vocabulary in a GGUF file, read and written.

llama.cpp has byte strings, escaped as in Python, for greedy longest match, and the tokens and merges of a byte-level
BPE. Any other tokenizer.json is stored whole, under the key that GGUF has for it; llama.cpp does not read it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from rnn_engine.errors import ModelError, TokenizerError
from rnn_engine.tensor_files.formats import gguf_metadata
from rnn_engine.tokenizer.world import ByteStringTokenizer, WorldTokenizer, tokenizer_of_pieces
from rnn_engine.types import Tokenizer, end_of_text

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
