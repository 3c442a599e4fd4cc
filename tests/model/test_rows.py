"""The rows of a model's matrices, read a few at a time, are those of the whole tensors, in every kind of file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.convert.convert import convert_model
from rnn_engine.loading.runner import open_model
from rnn_engine.model import LoraChoice, ModelFile
from rnn_engine.quantised import BLOCK_FORMATS, Blocks, quantise
from rnn_engine.quantised.gguf_blocks import read_blocks, write_blocks
from rnn_engine.quantised.rows import StoredRows, read_rows
from tests.support.gguf import save_gguf
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v6
from tests.support.pth import dict_of, program, save_pth, storage, tensor, write_pth

MODEL = random_model(tiny_shape(head_size=64), seed=1)
V6 = random_model(tiny_v6(ffn=96), seed=2)
MATRIX = "blocks.1.ffn.value.weight"


def save_by_columns(model: TensorModel, path: Path) -> Path:
    """Write a model as torch saves transposed matrices: the numbers of a column lie one after another."""
    entries, data = {}, {}
    for key, (name, values) in enumerate(model.tensors.items()):
        window = storage(str(key), "float32", values.size)
        entries[name] = tensor(window, 0, values.shape, np.cumprod((1, *values.shape[:-1])).tolist())
        data[str(key)] = values.T.tobytes()
    return write_pth(path, program(dict_of(entries)), data)


def convert(model: TensorModel, target: Path, weights: str) -> Path:
    with open_model(save_safetensors(model, target.with_name("source.safetensors"))) as source:
        convert_model(source, target, weights)
    return target


def gguf(kind: str) -> Callable[[Path], Path]:
    return lambda folder: save_gguf(MODEL, folder / "m.gguf", kind)


FILES: Mapping[str, tuple[TensorModel, Callable[[Path], Path]]] = {
    "safetensors": (MODEL, lambda folder: save_safetensors(MODEL, folder / "m.safetensors", "bf16")),
    "st": (MODEL, lambda folder: save_safetensors(MODEL, folder / "m.st", "f16", "ai00")),
    "pth": (MODEL, lambda folder: save_pth(MODEL, folder / "m.pth", "f16")),
    "deflated pth": (MODEL, lambda folder: save_pth(MODEL, folder / "m.pth", "f16", compression=zipfile.ZIP_DEFLATED)),
    "pth by columns": (MODEL, lambda folder: save_by_columns(MODEL, folder / "m.pth")),
    **{f"gguf {kind}": (MODEL, gguf(kind)) for kind in ("F32", "F16", "Q8_0", "Q5_1", "Q4_1", "Q4_0")},
    "gguf of v6": (V6, lambda folder: save_gguf(V6, folder / "m.gguf", "Q8_0", rescale_every=1)),
    "int4": (MODEL, lambda folder: convert(MODEL, folder / "m.safetensors", "int4")),
    "prefab": (MODEL, lambda folder: convert(MODEL, folder / "m.prefab", "f16")),
    "folder": (MODEL, lambda folder: convert(MODEL, folder / "m", "f16")),
}


def as_numbers(piece: NDArray[np.generic] | Blocks) -> NDArray[np.generic]:
    return piece.numbers() if isinstance(piece, Blocks) else piece


def assert_rows_are_right(model: ModelFile) -> int:
    """Read all matrices of a model by rows, and return how many are read from the file piece by piece."""
    stored = 0
    for name in model.names:
        whole = model.tensor(name)
        for transposed in (False, True) if whole.ndim == 2 else (False,):
            expected = whole.T if transposed else whole
            matrix = model.matrix(name, transposed=transposed)
            assert matrix.shape == expected.shape
            np.testing.assert_array_equal(as_numbers(read_rows(matrix)), expected, err_msg=name)
            if isinstance(matrix, StoredRows):
                stored += 1
                assert matrix.dtype == expected.dtype
            if whole.ndim == 2:
                for rows in (slice(0, 1), slice(1, 4), slice(2, None)):
                    part = matrix[3:][rows]
                    assert part.shape == expected[3:][rows].shape
                    np.testing.assert_array_equal(as_numbers(read_rows(part)), expected[3:][rows], err_msg=name)
    return stored


@pytest.mark.parametrize("kind", FILES)
def test_rows_are_those_of_the_whole_tensor(kind: str, tmp_path: Path) -> None:
    model, save = FILES[kind]
    with open_model(save(tmp_path)) as opened:
        stored = assert_rows_are_right(opened)
        matrices = sum(len(opened.tensors[name].shape) == 2 for name in opened.names)
    assert (stored == 0) == (kind in ("deflated pth", "pth by columns", "prefab"))
    assert stored <= matrices
    assert set(opened.names) <= set(model.names)


def test_a_matrix_that_a_lora_changes_has_the_changed_rows(tmp_path: Path) -> None:
    lora = {MATRIX: np.ones(MODEL.tensor(MATRIX).shape, np.float32)}
    path = save_pth(TensorModel(MODEL.shape, lora), tmp_path / "lora.pth", "f32")
    with open_model(save_safetensors(MODEL, tmp_path / "m.safetensors"), [LoraChoice(path, 1.0)]) as opened:
        assert_rows_are_right(opened)
        assert not np.array_equal(as_numbers(read_rows(opened.matrix(MATRIX))), MODEL.tensor(MATRIX))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks_of_gguf_come_back_as_they_were(name: str) -> None:
    matrix = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    blocks = quantise(BLOCK_FORMATS[name.lower()], matrix)
    again = read_blocks(name, write_blocks(blocks).reshape(-1), matrix.shape)
    np.testing.assert_array_equal(again.codes, blocks.codes)
    np.testing.assert_array_equal(again.figures, blocks.figures)
