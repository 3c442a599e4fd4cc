"""The convention that a file is taken for, with shapes that decide it and with ambiguous ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from rnn_engine.versions.v7.layout import AdapterRanks
from tests.support.models import FileDtype, TensorModel, random_model, save_safetensors, tiny_shape

NAME = "blocks.1.att.w1"
SQUARE = random_model(tiny_shape(width=32, ranks=AdapterRanks(w=32, a=32, v=32, g=32)), seed=1)
NEARLY_SQUARE = random_model(tiny_shape(width=32, ranks=AdapterRanks(w=32, a=32, v=32, g=33)), seed=1)


def first_adapter(path: Path) -> np.ndarray:
    with open_model(path) as opened:
        return opened.tensor(NAME).astype(np.float32)


@pytest.mark.parametrize(
    ("file_name", "dtype", "swapped"),
    [("a.st", "f16", True), ("a.safetensors", "f16", False), ("a.st", "f32", False), ("a.st", "bf16", False)],
)
def test_all_square_is_settled_by_what_ai00_writes(
    file_name: str, dtype: FileDtype, swapped: bool, tmp_path: Path
) -> None:
    values = first_adapter(save_safetensors(SQUARE, tmp_path / file_name, dtype))
    np.testing.assert_array_equal(values, SQUARE.tensor(NAME).T if swapped else SQUARE.tensor(NAME))


@pytest.mark.parametrize("file_name", ["a.st", "a.safetensors"])
def test_one_adapter_that_is_not_square_settles_all(file_name: str, tmp_path: Path) -> None:
    plain = save_safetensors(NEARLY_SQUARE, tmp_path / file_name, "f16")
    np.testing.assert_array_equal(first_adapter(plain), NEARLY_SQUARE.tensor(NAME))
    swapped = save_safetensors(NEARLY_SQUARE, tmp_path / file_name, "f16", "ai00")
    np.testing.assert_array_equal(first_adapter(swapped), NEARLY_SQUARE.tensor(NAME))


def test_one_wrong_adapter_does_not_change_how_the_others_are_read(tmp_path: Path) -> None:
    model = random_model(tiny_shape(), seed=2)
    wrong = TensorModel(model.shape, model.tensors | {NAME: np.ascontiguousarray(model.tensor(NAME).T)})
    message = r"1 tensor of the wrong shape: blocks\.1\.att\.w1 is \[16, 64\], expected \[64, 16\]"
    for convention in ("blinkdl", "ai00"):
        path = save_safetensors(wrong, tmp_path / "model.safetensors", "f16", convention)
        with pytest.raises(ModelError, match=message):
            open_model(path)
