"""Opening a damaged GGUF file raises a ModelError that describes the damage, in little time and memory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from tests.support.damaged_files import refusal
from tests.support.gguf import save_gguf
from tests.support.models import random_model, tiny_shape

MODEL = random_model(tiny_shape(layers=1, width=16, vocab=4), seed=1)
HUGE = struct.pack("<Q", 1 << 60)
NAME = b"blk.0.time_mix_key.weight"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = save_gguf(MODEL, tmp_path_factory.mktemp("gguf") / "model.gguf", tokens=[b"<s>", b"a", b"b", b"c"])
    return path.read_bytes()


def test_truncated_anywhere(sound: bytes, tmp_path: Path) -> None:
    end = len(sound.rstrip(b"\0"))
    for size in (*range(4, 4000, 37), *range(4000, end, 997), end - 1):
        assert "GGUF file" in refusal(tmp_path / "model.gguf", sound[:size])


def test_truncated_while_it_is_open(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(sound)
    with open_model(path) as opened:
        path.write_bytes(sound[:5000])
        with pytest.raises(ModelError, match="changed while it was read"):
            opened.tensor("head.weight")


def at(needle: bytes, offset: int) -> Callable[[bytes], int]:
    """Return a function that gives the place `offset` bytes after the end of `needle` in a file."""
    return lambda data: data.index(needle) + len(needle) + offset


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (lambda data: 8, HUGE, "it counts 1152921504606846976 tensors; expected at most 65536"),
        (lambda data: 16, HUGE, "it counts 1152921504606846976 keys; expected at most 65536"),
        (lambda data: 24, HUGE, "1152921504606846976 bytes at 32 reach beyond the file"),
        (at(b"tokenizer.ggml.tokens", 8), HUGE, "an array counts 1152921504606846976 texts; expected at most 524288"),
        (at(b"tokenizer.ggml.token_type", 8), HUGE, "reach beyond the file"),
        (at(b"tokenizer.ggml.token_type", 4), b"\x09", "a value of the metadata has the type 9"),
        (at(b"rwkv7.block_count", 0), b"\x20", "a value of the metadata has the type 32"),
        (at(b"rwkv7.block_count", -1), b"\xff", "a key is not valid UTF-8"),
        (at(NAME, 0), b"\x05", "tensor blk.0.time_mix_key.weight has 5 dimensions; expected 1 to 4"),
        (at(NAME, 0), b"\x00", "tensor blk.0.time_mix_key.weight has 0 dimensions; expected 1 to 4"),
        (at(NAME, 4), HUGE, "tensor blk.0.time_mix_key.weight has 73786976294838206464 bytes"),
        (
            at(NAME, 4),
            bytes(8),
            "tensor blk.0.time_mix_key.weight has the dimensions [0, 16]; expected dimensions of at least 1",
        ),
        (at(NAME, 20), b"\x22", "tensor blk.0.time_mix_key.weight has the GGUF type number 34 (TQ1_0); expected one"),
        (at(NAME, 20), b"\x27", "tensor blk.0.time_mix_key.weight has the GGUF type number 39 (MXFP4); expected one"),
        (at(NAME, 20), b"\xee", "tensor blk.0.time_mix_key.weight has the GGUF type number 238; expected one of F32"),
        (at(NAME, 20), b"\x0c", "tensor blk.0.time_mix_key.weight has rows of 16 numbers; expected a multiple of 256"),
        (at(NAME, 24), HUGE, "tensor blk.0.time_mix_key.weight begins at byte 1152921504606846976; expected "),
        (at(NAME, 24), bytes(8), "tensor blk.0.time_mix_key.weight begins at byte 0; expected "),
        (at(b"blk.0.time_mix_", 0), b"K", "1 tensor missing: blk.0.time_mix_"),
    ],
)
def test_a_header_that_makes_no_sense(
    place: Callable[[bytes], int], value: bytes, message: str, sound: bytes, tmp_path: Path
) -> None:
    start = place(sound)
    assert message in refusal(tmp_path / "model.gguf", sound[:start] + value + sound[start + len(value) :])


def test_a_name_that_is_there_twice(sound: bytes, tmp_path: Path) -> None:
    renamed = sound.replace(b"blk.0.time_mix_w0", b"blk.0.time_mix_a0")
    assert "blk.0.time_mix_a0.weight occurs twice" in refusal(tmp_path / "model.gguf", renamed)
