"""Equal weights have the same fingerprint in every kind of file; other weights have another one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.convert.convert import convert_model
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.model.fingerprint import TensorDigest, fingerprint
from rnn_engine.tensor_files.source import BinaryFile
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


def read_again(name: str) -> NDArray[Any]:
    raise AssertionError(f"{name} is read again")


def test_pieces_may_come_in_any_order_and_twice() -> None:
    rows = np.random.default_rng(3).integers(0, 256, (64, 100), dtype=np.uint8)
    expected = fingerprint("v7", ["a"], lambda _: rows)
    starts = [*np.random.default_rng(4).permutation(range(0, 64, 4)).tolist(), 0, 32]
    digest = TensorDigest(rows.shape)
    for start in starts[:-3]:
        digest.add(start, rows[start : start + 4])
    assert fingerprint("v7", ["a"], lambda _: rows, known={"a": digest}) == expected  # read whole instead
    for start in starts[-3:]:
        digest.add(start, rows[start : start + 4])
    assert fingerprint("v7", ["a"], read_again, known={"a": digest}) == expected


def test_pieces_of_threads_that_take_turns() -> None:
    rows = np.random.default_rng(3).integers(0, 256, (512, 1000), dtype=np.uint8)
    digest = TensorDigest(rows.shape)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda start: digest.add(start, rows[start : start + 8]), range(0, 512, 8)))
    assert fingerprint("v7", ["a"], read_again, known={"a": digest}) == fingerprint("v7", ["a"], lambda _: rows)


@pytest.mark.parametrize("weights", ["f16", "q4_k"])
@pytest.mark.parametrize("device", ["0", "cpu"])
def test_a_load_reads_a_file_once(device: str, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = random_model(tiny_shape(layers=1, width=256, head_size=64, ffn=512, vocab=300), seed=6)
    source = save_safetensors(wide, tmp_path / "model.safetensors", "f16")
    with open_model(source) as model:
        convert_model(model, tmp_path / "model.gguf", weights)
    expected = fingerprint_of(tmp_path / "model.gguf")
    read = BinaryFile.read
    sizes: list[int] = []

    def counting(file: BinaryFile, start: int, size: int) -> NDArray[np.uint8]:
        sizes.append(size)
        return read(file, start, size)

    with open_model(tmp_path / "model.gguf") as model:
        monkeypatch.setattr(BinaryFile, "read", counting)
        model.start_identifying()
        load_runner(model, device, RunnerSize(1), weights="stored").close()
        assert model.identify() == expected
        assert sum(sizes) < 1.2 * model.num_bytes  # transposed adapters are read again
