"""The vocabulary in a GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnn_engine.errors import InvalidRequestError, TokenizerError
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.tokenizer.world import WorldTokenizer
from tests.support.gguf import metadata, save_gguf, write_gguf
from tests.support.models import random_model, tiny_shape

PIECES = [b"", b"a", b"ab", b"b", b"'", b"\\'", b'"', b"\n\t\r", b"\xff", "é".encode()]
MODEL = random_model(tiny_shape(layers=1, width=16), seed=1)


def escaped(piece: bytes) -> bytes:
    """Return a piece as llama.cpp's converter writes it."""
    return repr(piece)[2:-1].encode()


def test_byte_strings_are_unescaped_and_the_longest_is_taken(tmp_path: Path) -> None:
    path = save_gguf(MODEL, tmp_path / "model.gguf", tokens=[b"<s>", *map(escaped, PIECES[1:])])
    tokenizer = load_tokenizer("auto", path, 96)
    assert (tokenizer.name, tokenizer.size) == ("gguf", len(PIECES))
    assert [tokenizer.decode_bytes(token) for token in range(-1, 11)] == [b"", *PIECES, b""]
    assert tokenizer.encode("abaé\\'\n\t\r") == [2, 1, 9, 5, 7]
    with pytest.raises(InvalidRequestError, match="text whose bytes are all in the vocabulary, which lacks 0x63"):
        tokenizer.encode("abc")


def test_the_world_vocabulary_is_known_again(tmp_path: Path) -> None:
    world = WorldTokenizer()
    tokens = [b"<s>", *(escaped(world.decode_bytes(token)) for token in range(1, world.size))]
    path = write_gguf(tmp_path / "model.gguf", "rwkv7", metadata(MODEL.shape), {}, tokens=tokens)
    assert load_tokenizer("auto", path, 65536).name == "world"


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(TokenizerError, match="damaged or truncated GGUF file"):
        load_tokenizer("auto", path, 96)
