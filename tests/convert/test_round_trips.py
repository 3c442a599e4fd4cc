"""A converted model gives identical logits, also after converting back if the format allows that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rnn_engine.convert.convert import convert_model
from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from rnn_engine.types import F32, ModelShape
from tests.support.hf import save_hf
from tests.support.models import TensorModel, deep_embedded, random_model, save_safetensors, tiny_shape
from tests.support.older_models import OLDER_SHAPES, QWEN2_SHAPES, tiny_v5, tiny_v6
from tests.support.reference import forward

SHAPES: tuple[ModelShape, ...] = (
    *OLDER_SHAPES,
    *QWEN2_SHAPES,
    tiny_shape(head_size=64),
    deep_embedded(tiny_shape(layers=1)),
)
HOLDS = {
    ".safetensors": {"v4", "v5.0", "v5.1", "v5.2", "v6", "v7", "v7-deepembed", "v6-qwen2", "v7-qwen2"},
    ".pth": {"v4", "v5.0", "v5.1", "v5.2", "v6", "v7", "v7-deepembed", "v6-qwen2", "v7-qwen2"},
    ".st": {"v4", "v5.1", "v5.2", "v6", "v7"},
    ".prefab": {"v4", "v5.1", "v5.2", "v6", "v7"},
    ".gguf": {"v6", "v7", "v6-qwen2", "v7-qwen2"},
    "": {"v7"},
}
TOKENS = [3, 1, 4, 15, 9, 26]

for_each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.version)


def logits(path: Path) -> F32:
    with open_model(path) as model:
        return forward(model, TOKENS)[0]


def convert(source: Path, target: Path, weights: str = "stored") -> Path:
    with open_model(source) as model:
        convert_model(model, target, weights)
    return target


def model_file(shape: ModelShape, folder: Path) -> Path:
    """Write a model in f32 whose numbers f16 and bf16 can hold, too; return its path."""
    return save_safetensors(random_model(shape, seed=7, bits=8), folder / "model.safetensors", "f32")


@pytest.mark.parametrize("suffix", HOLDS)
@for_each_shape
def test_logits_stay_the_same(shape: ModelShape, suffix: str, tmp_path: Path) -> None:
    source = model_file(shape, tmp_path)
    if shape.version not in HOLDS[suffix]:
        with pytest.raises(ModelError, match=f"RWKV {shape.version}; expected"):
            convert(source, tmp_path / f"out{suffix}")
        assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors"}
        return
    expected = logits(source)
    there = convert(source, tmp_path / f"out{suffix}")
    assert np.array_equal(logits(there), expected)
    back = convert(there, tmp_path / "back.safetensors")
    assert np.array_equal(logits(back), expected)


@pytest.mark.parametrize("weights", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".gguf", ""])
def test_matrices_have_the_type_that_is_chosen(suffix: str, weights: str, tmp_path: Path) -> None:
    source = model_file(tiny_shape(head_size=64), tmp_path)
    target = convert(source, tmp_path / f"out{suffix}", weights)
    dtype = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}[weights]
    with open_model(target) as model:
        for name in ("emb.weight", "head.weight", "blocks.0.ffn.key.weight"):
            assert model.tensors[name].dtype.name == dtype
        assert model.tensors["blocks.1.ln1.weight"].dtype == np.float32
    assert np.array_equal(logits(target), logits(source))


def test_an_st_file_has_f16_and_the_names_of_ai00(tmp_path: Path) -> None:
    target = convert(model_file(tiny_v6(), tmp_path), tmp_path / "out.st")
    with open_model(target) as model:
        assert {info.dtype.name for info in model.tensors.values()} == {"float16"}
    assert b"blocks.0.att.time_mix_w1" in target.read_bytes()
    with pytest.raises(ModelError, match=r"can't be f32 in an \.st file; expected --weights f16"):
        convert(target, tmp_path / "other.st", "f32")


def test_rwkv_5_1_is_5_2_for_ai00(tmp_path: Path) -> None:
    with open_model(convert(model_file(tiny_v5("v5.1"), tmp_path), tmp_path / "out.st")) as model:
        assert model.shape.version == "v5.2"


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".st"])
def test_a_tuned_state_comes_along(suffix: str, tmp_path: Path) -> None:
    model = random_model(tiny_shape(), seed=2)
    state = np.arange(4 * 16 * 16, dtype=np.float32).reshape(4, 16, 16)
    tuned = TensorModel(model.shape, {**model.tensors, "blocks.1.att.time_state": state})
    source = save_safetensors(tuned, tmp_path / "model.safetensors", "f32")
    with open_model(convert(source, tmp_path / f"out{suffix}")) as opened:
        assert np.array_equal(opened.tensor("blocks.1.att.time_state"), state)
    for name in ("out.gguf", "out"):
        with pytest.raises(ModelError, match=r"blocks\.1\.att\.time_state; expected|expected 0.00016"):
            convert(source, tmp_path / name)


def test_an_epsilon_that_the_target_can_not_say_is_refused(tmp_path: Path) -> None:
    folder = save_hf(random_model(tiny_shape(), seed=2, layer0_v=False), tmp_path / "folder", "fla")
    with pytest.raises(ModelError, match="this format can't store the model's group norm epsilon"):
        convert(folder, tmp_path / "out.safetensors")
    assert np.array_equal(logits(convert(folder, tmp_path / "out")), logits(folder))


def test_numbers_beyond_f16_are_refused_by_name(tmp_path: Path) -> None:
    model = random_model(tiny_shape(), seed=2)
    large = model.tensors["blocks.1.ffn.value.weight"].copy()
    large[3, 4] = 1e6
    changed = TensorModel(model.shape, {**model.tensors, "blocks.1.ffn.value.weight": large})
    source = save_safetensors(changed, tmp_path / "model.safetensors", "f32")
    with pytest.raises(ModelError, match=r"out\.st was not written: blocks\.1\.ffn\.value\.weight has numbers beyond"):
        convert(source, tmp_path / "out.st")
    assert not (tmp_path / "out.st").exists()
