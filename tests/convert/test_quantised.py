"""Weights saved in 8 and 4 bits are the same when they are loaded again, and are not quantised anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from rnn_engine.convert.convert import convert_model
from rnn_engine.errors import ModelError
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.model import LoraChoice
from rnn_engine.quantised import BLOCK_FORMATS, blocks
from rnn_engine.types import F32, TokenRun, run_step
from tests.support.loras import draw_pair, save_ai00
from tests.support.models import random_model, save_safetensors, tiny_shape

MODEL = random_model(tiny_shape(ffn=96), seed=3)
MATRIX = "blocks.1.ffn.key.weight"
TOKENS = [3, 1, 4, 15, 9, 26]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_safetensors(MODEL, tmp_path / "model.safetensors", "f16")


def convert(source: Path, target: Path, weights: str) -> Path:
    with open_model(source) as model:
        convert_model(model, target, weights)
    return target


def device_logits(path: Path, weights: str) -> F32:
    with open_model(path) as model:
        runner = load_runner(model, size=RunnerSize(1, max_rows=len(TOKENS)), weights=weights)
    readout = run_step(runner, [TokenRun(0, TOKENS, rows=len(TOKENS))])
    logits = np.array([readout.full_row(row) for row in range(len(TOKENS))])
    runner.close()
    return logits


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_device_gets_the_same_bytes_and_nothing_is_quantised_anew(
    name: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = convert(source, tmp_path / "out.safetensors", name)
    if BLOCK_FORMATS[name].block_columns <= MODEL.shape.width * 2:  # else blocks are mostly padding
        assert target.stat().st_size < source.stat().st_size
    weights = WEIGHT_FORMATS[name]
    expected = weights.pack(MODEL.tensor(MATRIX))
    monkeypatch.setattr("rnn_engine.forward.weight_formats.quantise_rows", None)
    with open_model(target) as model:
        stored = model.blocks(MATRIX)
        assert stored is not None
        assert model.block_type(MATRIX) == name
        for buffer, array in weights.pack(stored).items():
            assert np.array_equal(array, expected[buffer])
        convert_model(model, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == target.read_bytes()


def test_logits_are_identical(source: Path, tmp_path: Path) -> None:
    target = convert(source, tmp_path / "out.safetensors", "int4")
    assert np.array_equal(device_logits(target, "stored"), device_logits(source, "int4"))


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1"])
def test_gguf_and_back(name: str, source: Path, tmp_path: Path) -> None:
    first = convert(source, tmp_path / "first.safetensors", f"{name},head={name},first={name}")
    there = convert(first, tmp_path / "there.gguf", "stored")
    back = convert(there, tmp_path / "back.safetensors", "stored")
    for path in (there, back):
        with open_model(first) as model, open_model(path) as other:
            stored, found = model.blocks(MATRIX), other.blocks(MATRIX)
            assert stored is not None
            assert found is not None
            assert np.array_equal(stored.codes, found.codes)
            assert np.array_equal(stored.figures, found.figures)
            assert np.array_equal(other.tensor(MATRIX), model.tensor(MATRIX))


def test_what_4_bits_leave_to_8_is_q8_0_in_gguf(source: Path, tmp_path: Path) -> None:
    with open_model(convert(source, tmp_path / "out.gguf", "q4_1")) as model:
        assert model.block_type("head.weight") == "Q8_0"
        assert model.block_type(MATRIX) == "Q4_1"


@pytest.mark.parametrize(
    ("target", "weights", "message"),
    [
        ("out.gguf", "nf4", r"a GGUF file can't hold blocks\.1\.\w+\.key\.weight in nf4; expected q8_0"),
        ("out.pth", "int8", r"weight can't be written as int8; expected --w"),
        ("out.st", "int8", r"can't be int8 in an \.st file; expected --weights f16"),
        ("out.safetensors", "f16,adapters=int8", r"blocks\.0\.att\.w1 can't be saved in int8; expected adapters=f16"),
    ],
)
def test_what_a_target_can_not_hold_is_refused_by_name(
    target: str, weights: str, message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        convert(source, tmp_path / target, weights)
    assert not (tmp_path / target).exists()


def test_rows_that_fill_no_blocks_are_refused_in_gguf(tmp_path: Path) -> None:
    odd = save_safetensors(random_model(tiny_shape(ffn=100), seed=3), tmp_path / "odd.safetensors", "f16")
    with pytest.raises(ModelError, match=r"ffn\.value\.weight has rows of 100 numbers; expected a multiple of 32"):
        convert(odd, tmp_path / "out.gguf", "q8_0")


def test_a_lora_on_a_quantised_model_makes_numbers_of_what_it_changes(source: Path, tmp_path: Path) -> None:
    target = convert(source, tmp_path / "out.safetensors", "int8")
    module = MATRIX.removesuffix(".weight")
    lora = save_ai00({module: draw_pair(MODEL, MATRIX, 4)}, tmp_path / "lora.st")
    with open_model(target, [LoraChoice.parse(f"{lora}:8")]) as merged:
        assert merged.blocks(MATRIX) is None
        assert merged.blocks("blocks.0.ffn.key.weight") is not None


def test_a_matrix_is_quantised_in_pieces_as_it_is_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(1).normal(size=(37, 50)).astype(np.float32)
    whole = blocks.quantise(BLOCK_FORMATS["int4"], matrix)
    monkeypatch.setattr(blocks, "_PIECE_BYTES", 4 * 50 * 5)
    pieces = blocks.quantise(BLOCK_FORMATS["int4"], matrix)
    assert np.array_equal(pieces.codes, whole.codes)
    assert np.array_equal(pieces.figures, whole.figures)


@pytest.mark.parametrize(
    ("noted", "message"),
    [
        ("{", "the metadata's rnn_engine.blocks is invalid"),
        ("[]", "the metadata's rnn_engine.blocks is invalid"),
        ('{"a": 1}', "the metadata's rnn_engine.blocks is invalid"),
        ('{"a": {"format": "int3", "columns": 8}}', "the format 'int3' is not known; expected one of int8"),
        ('{"a": {"format": [], "columns": 8}}', "the metadata's rnn_engine.blocks is invalid"),
        ('{"a": {"format": "int8", "columns": -1}}', "-1 columns; expected a number from 1"),
        ('{"b": {"format": "int8", "columns": 8}}', r"b is in blocks; expected b\.codes and \.figures in its place"),
        ('{"a": {"format": "int8", "columns": 800}}', r"a\.codes is \[8, 1, 128\] of uint8; expected \[8, 7, 128\]"),
        ('{"a": {"format": "q8_0", "columns": 8}}', r"a\.codes is .*; expected \[8, 1, 32\] of uint8 for 8 columns"),
    ],
)
def test_damaged_notes_are_refused(noted: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"
    tensors: dict[str, NDArray[Any]] = {
        "a.codes": np.zeros((8, 1, 128), np.uint8),
        "a.figures": np.zeros((8, 1, 2), np.float16),
    }
    save_file(tensors, path, {"rnn_engine.blocks": noted})
    with pytest.raises(ModelError, match=message):
        open_model(path)


def test_other_readers_find_plain_tensors(source: Path, tmp_path: Path) -> None:
    target = convert(source, tmp_path / "out.safetensors", "int4")
    tensors = load_file(target)
    assert tensors[f"{MATRIX}.codes"].dtype == np.uint8
    assert tensors[f"{MATRIX}.figures"].shape == (96, 1, 2)
    length = int.from_bytes(target.read_bytes()[:8], "little")
    noted = json.loads(json.loads(target.read_bytes()[8 : 8 + length])["__metadata__"]["rnn_engine.blocks"])
    assert noted[MATRIX] == {"format": "int4", "columns": 64}
