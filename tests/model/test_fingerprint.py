"""Equal weights have the same fingerprint in every kind of file; other weights have another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.loading.runner import open_model
from rnn_engine.model.fingerprint import fingerprint
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.pth import save_pth

MODEL = random_model(tiny_shape(), seed=1)


def fingerprint_of(path: Path) -> str:
    with open_model(path) as opened:
        return opened.fingerprint


def test_equal_in_every_format_and_convention(tmp_path: Path) -> None:
    paths = [
        save_safetensors(MODEL, tmp_path / "a.safetensors", "f16"),
        save_safetensors(MODEL, tmp_path / "b.st", "f16", "ai00"),
        save_pth(MODEL, tmp_path / "c.pth", "f16"),
    ]
    assert len({fingerprint_of(path) for path in paths}) == 1


def test_other_weights_and_types_have_another(tmp_path: Path) -> None:
    other = random_model(tiny_shape(), seed=2)
    changed = MODEL.tensor("blocks.1.att.w0").copy()
    changed[-1] += 1
    paths = [
        save_safetensors(MODEL, tmp_path / "a.safetensors", "f16"),
        save_safetensors(MODEL, tmp_path / "b.safetensors", "bf16"),
        save_safetensors(other, tmp_path / "c.safetensors", "f16"),
        save_safetensors(
            TensorModel(MODEL.shape, MODEL.tensors | {"blocks.1.att.w0": changed}), tmp_path / "d.safetensors", "f16"
        ),
    ]
    assert len({fingerprint_of(path) for path in paths}) == len(paths)


@pytest.mark.parametrize(
    ("names", "array"),
    [
        (["b"], np.arange(64, dtype=np.float32)),
        (["a", "b"], np.arange(64, dtype=np.float32)),
        (["a"], np.arange(64, dtype=np.float16)),
        (["a"], np.arange(64, dtype=np.float32).reshape(8, 8)),
        (["a"], np.arange(1, 65, dtype=np.float32)),
    ],
)
def test_names_shapes_types_and_values_all_count(names: list[str], array: np.ndarray) -> None:
    plain = fingerprint("v7", ["a"], lambda _: np.arange(64, dtype=np.float32))
    assert fingerprint("v7", names, lambda _: array) != plain
    assert fingerprint("v8", ["a"], lambda _: np.arange(64, dtype=np.float32)) != plain


def test_every_byte_counts(tmp_path: Path) -> None:
    """Change one byte in the middle of one row of the embedding, in a file that is otherwise the same."""
    path = save_safetensors(MODEL, tmp_path / "model.safetensors", "f16")
    row = MODEL.tensor("emb.weight")[41].astype(np.float16).tobytes()
    content = bytearray(path.read_bytes())
    assert content.count(row) == 1
    before = fingerprint_of(path)
    content[content.index(row) + len(row) // 2] ^= 1
    path.write_bytes(content)
    assert fingerprint_of(path) != before


def test_every_chunk_of_a_large_tensor_counts() -> None:
    tensor = np.zeros(9 << 20, np.uint8)
    found = {fingerprint("v7", ["a"], lambda _: tensor)}
    for place in (0, 4 << 20, len(tensor) - 1):
        tensor[place] = 1
        found.add(fingerprint("v7", ["a"], lambda _: tensor))
    assert len(found) == 4


def test_stays_what_it_was() -> None:
    """Saved states carry fingerprints, so after a change of the recipe no model would accept them."""
    tensors: dict[str, NDArray[Any]] = {
        "b": np.arange(64, dtype=np.float32).reshape(2, 32),
        "a": np.zeros(1, np.float16),
    }
    assert fingerprint("v7", tensors, tensors.__getitem__) == "9775b98a734e970ee0d5b5079877764d"
