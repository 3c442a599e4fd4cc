"""Every file is read as the model written to it, with all formats, conventions and sizes."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rnn_engine.loading.runner import open_model
from rnn_engine.model import ModelFile
from rnn_engine.versions.v7.layout import AdapterRanks, ShapeV7
from tests.support.models import FileDtype, TensorModel, random_model, save_safetensors, tiny_shape
from tests.support.pth import save_pth

DTYPES: tuple[FileDtype, ...] = ("f16", "bf16", "f32")
DTYPE_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
SQUARE = AdapterRanks(w=32, a=32, v=32, g=32)
SHAPES = {
    "one layer": tiny_shape(layers=1),
    "one head of 128": tiny_shape(width=128, head_size=128),
    "heads of 32": tiny_shape(width=96, head_size=32, ffn=100),
    "three heads of 16, vocabulary 12": tiny_shape(layers=3, width=48, vocab=12),
    "one token": tiny_shape(vocab=1),
    "adapters of every size": tiny_shape(ranks=AdapterRanks(w=1, a=7, v=64, g=130)),
    "square adapters": tiny_shape(width=32, ranks=SQUARE),
}


def assert_same(opened: ModelFile, model: TensorModel, dtype: str) -> None:
    assert opened.shape == model.shape
    assert set(opened.names) == set(model.names)
    for name in model.names:
        values = opened.tensor(name)
        assert values.dtype.name == dtype
        assert opened.has(name)
        np.testing.assert_array_equal(values.astype(np.float32), model.tensor(name), err_msg=name)


@pytest.fixture
def model() -> TensorModel:
    return random_model(tiny_shape(), seed=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors(model: TensorModel, dtype: FileDtype, tmp_path: Path) -> None:
    with open_model(save_safetensors(model, tmp_path / "model.safetensors", dtype)) as opened:
        assert_same(opened, model, DTYPE_NAMES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_ai00_convention(model: TensorModel, dtype: FileDtype, tmp_path: Path) -> None:
    with open_model(save_safetensors(model, tmp_path / "model.safetensors", dtype, "ai00")) as opened:
        assert_same(opened, model, DTYPE_NAMES[dtype])


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pth(model: TensorModel, dtype: FileDtype, compression: int, tmp_path: Path) -> None:
    with open_model(save_pth(model, tmp_path / "model.pth", dtype, compression=compression)) as opened:
        assert_same(opened, model, DTYPE_NAMES[dtype])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(shape: ShapeV7, tmp_path: Path) -> None:
    model = random_model(shape, seed=2, layer0_v=shape.num_layers == 1)
    with open_model(save_safetensors(model, tmp_path / "a.safetensors", "f16")) as opened:
        assert_same(opened, model, "float16")
    with open_model(save_safetensors(model, tmp_path / "b.st", "f16", "ai00")) as opened:
        assert_same(opened, model, "float16")


def test_the_only_layer_may_lack_the_value_adapter(tmp_path: Path) -> None:
    model = random_model(tiny_shape(layers=1), seed=3, layer0_v=False)
    with open_model(save_safetensors(model, tmp_path / "model.safetensors")) as opened:
        assert isinstance(opened.shape, ShapeV7)
        assert opened.shape.ranks == AdapterRanks(w=16, a=12, v=0, g=24)
        assert not opened.has("blocks.0.att.v1")


def test_format_is_told_by_content_and_not_by_name(model: TensorModel, tmp_path: Path) -> None:
    with open_model(save_safetensors(model, tmp_path / "model.pth", "f32")) as opened:
        assert_same(opened, model, "float32")
    with open_model(save_pth(model, tmp_path / "model.safetensors", "f32")) as opened:
        assert_same(opened, model, "float32")


@pytest.mark.parametrize("file_name", ["model.safetensors", "model.pth"])
def test_arrays_are_contiguous_aligned_and_read_only(model: TensorModel, file_name: str, tmp_path: Path) -> None:
    save = save_pth if file_name.endswith("pth") else save_safetensors
    with open_model(save(model, tmp_path / file_name, "f32")) as opened:
        for name in opened.names:
            flags = opened.tensor(name).flags
            assert (flags.c_contiguous, flags.aligned, flags.writeable) == (True, True, False)


@pytest.mark.parametrize("kind", ["safetensors", "pth", "compressed pth"])
def test_memory_for_reading_and_hashing_is_one_tensor(kind: str, tmp_path: Path) -> None:
    model = random_model(tiny_shape(layers=4, width=128, vocab=4000), seed=4)  # 1 MB in f16 for each of emb and head
    path = tmp_path / "model"
    match kind:
        case "safetensors":
            save_safetensors(model, path, "f16")
        case "pth":
            save_pth(model, path, "f16")
        case _:
            save_pth(model, path, "f16", compression=zipfile.ZIP_DEFLATED)
    largest = max(values.nbytes // 2 for values in model.tensors.values())
    del model
    tracemalloc.start()
    try:
        with open_model(path) as opened:
            assert opened.fingerprint
            total = sum(opened.tensor(name).nbytes for name in opened.names)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 3 * largest
    assert peak < 1.5 * largest


@pytest.mark.parametrize("file_name", ["model.safetensors", "model.pth"])
def test_arrays_outlive_the_file(model: TensorModel, file_name: str, tmp_path: Path) -> None:
    save = save_pth if file_name.endswith("pth") else save_safetensors
    opened = open_model(save(model, tmp_path / file_name, "f32"))
    values = opened.tensor("emb.weight")
    opened.close()
    opened.close()
    np.testing.assert_array_equal(values, model.tensor("emb.weight"))
    with pytest.raises(ValueError, match="closed"):
        opened.tensor("emb.weight")


def test_unknown_tensor_is_a_key_error(model: TensorModel, tmp_path: Path) -> None:
    with open_model(save_safetensors(model, tmp_path / "model.safetensors")) as opened:
        assert not opened.has("blocks.9.att.w1")
        with pytest.raises(KeyError, match=r"blocks\.9"):
            opened.tensor("blocks.9.att.w1")


def test_tuned_initial_state_is_turned_as_the_adapters_are(model: TensorModel, tmp_path: Path) -> None:
    shape = model.shape
    assert isinstance(shape, ShapeV7)
    state = np.random.default_rng(5).normal(size=(shape.num_heads, shape.head_size, shape.head_size))
    state = state.astype(np.float16).astype(np.float32)  # [H, value, key]
    name = "blocks.1.att.time_state"
    tuned = TensorModel(shape, model.tensors | {name: state})
    with open_model(save_safetensors(tuned, tmp_path / "a.safetensors")) as opened:
        np.testing.assert_array_equal(opened.tensor(name), state)
    path = save_safetensors(tuned, tmp_path / "b.st", "f16", "ai00")
    np.testing.assert_array_equal(load_file(path)[name], state.swapaxes(1, 2))
    with open_model(path) as opened:
        np.testing.assert_array_equal(opened.tensor(name), state)
