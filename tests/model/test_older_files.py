"""Files of the versions before RWKV-7, in both conventions, with shapes and names as in published files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from rnn_engine.types import ModelShape
from tests.support.models import Convention, TensorModel, random_model, save_safetensors
from tests.support.older_models import OLDER_SHAPES, tiny_v5, tiny_v6
from tests.support.pth import save_pth

Arrays = Mapping[str, NDArray[Any]]
IDS = [shape.version for shape in OLDER_SHAPES]


def assert_opens_as(path: Path, model: TensorModel) -> None:
    with open_model(path) as opened:
        assert opened.shape == model.shape
        assert set(opened.names) == set(model.names)
        for name in model.names:
            np.testing.assert_array_equal(opened.tensor(name).astype(np.float32), model.tensor(name), err_msg=name)


def refusal(path: Path, tensors: Arrays) -> str:
    save_file(dict(tensors), path)
    with pytest.raises(ModelError) as caught:
        open_model(path)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("convention", ["blinkdl", "ai00"])
@pytest.mark.parametrize("shape", OLDER_SHAPES, ids=IDS)
def test_safetensors(shape: ModelShape, convention: Convention, tmp_path: Path) -> None:
    model = random_model(shape, seed=1)
    assert_opens_as(save_safetensors(model, tmp_path / "model.st", "f16", convention), model)


@pytest.mark.parametrize("shape", OLDER_SHAPES, ids=IDS)
def test_pth(shape: ModelShape, tmp_path: Path) -> None:
    model = random_model(shape, seed=1)
    assert_opens_as(save_pth(model, tmp_path / "model.pth", "f16"), model)


def test_ai00_has_names_of_its_own_for_v6(tmp_path: Path) -> None:
    names = load_file(save_safetensors(random_model(tiny_v6(), seed=1), tmp_path / "a.st", "f16", "ai00"))
    assert {"blocks.0.att.time_mix_w1", "blocks.1.att.time_first", "blocks.0.ffn.time_mix_k"} <= names.keys()
    assert not any("time_maa" in name or "time_faaaa" in name for name in names)
    assert names["blocks.0.att.time_mix_w2"].shape == (5, 64, 6)


@pytest.mark.parametrize("convention", ["blinkdl", "ai00"])
def test_square_adapters_follow_those_that_are_not(convention: Convention, tmp_path: Path) -> None:
    model = random_model(tiny_v6(width=32, mix_rank=32, decay_rank=32), seed=2)
    assert_opens_as(save_safetensors(model, tmp_path / "a.safetensors", "f16", convention), model)


@pytest.mark.parametrize("axes", [(1,), (1, 1)])
def test_a_number_a_head_may_have_further_axes(axes: tuple[int, ...], tmp_path: Path) -> None:
    model = random_model(tiny_v5("v5.1"), seed=3)
    stored = {
        name: values.reshape(-1, *axes) if name.endswith(("time_decay", "time_faaaa")) else values
        for name, values in model.tensors.items()
    }
    save_file(stored, tmp_path / "model.safetensors")
    assert_opens_as(tmp_path / "model.safetensors", model)


def test_the_three_kinds_of_v5_are_told_apart(tmp_path: Path) -> None:
    for version in ("v5.0", "v5.1", "v5.2"):
        model = random_model(tiny_v5(version), seed=4)
        with open_model(save_safetensors(model, tmp_path / "model.safetensors")) as opened:
            assert opened.shape.version == version


def test_a_v5_of_one_number_a_head_repeated_is_a_v5_2(tmp_path: Path) -> None:
    model = random_model(tiny_v5("v5.1"), seed=5)
    repeated = {
        name.replace("time_faaaa", "time_first"): np.repeat(values[:, np.newaxis], 16, axis=1)
        if name.endswith(("time_decay", "time_faaaa"))
        else values
        for name, values in model.tensors.items()
    }
    save_file(repeated, tmp_path / "model.st")
    with open_model(tmp_path / "model.st") as opened:
        assert opened.shape == tiny_v5("v5.2")
        bonus = opened.tensor("blocks.0.att.time_faaaa")
        np.testing.assert_array_equal(bonus[:, 3], model.tensor("blocks.0.att.time_faaaa"))


def test_sizes_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = random_model(tiny_v6(layers=1), seed=6).tensors
    wrong: Arrays = {"blocks.0.att.time_maa_w1": np.zeros((64, 31), np.float32)}
    assert refusal(path, {**tensors, **wrong}) == (
        "blocks.0.att.time_maa_w1 has 31 columns; expected 30, 5 times the 6 of time_maa_w2"
    )
    wrong = {"blocks.0.att.time_maa_w2": np.zeros((4, 6, 64), np.float32)}
    assert refusal(path, {**tensors, **wrong}) == "blocks.0.att.time_maa_w2 has 4 matrices; expected 5"
    wrong = {"blocks.0.att.time_faaaa": np.zeros((3, 16), np.float32)}
    assert refusal(path, {**tensors, **wrong}).startswith("blocks.0.att.time_faaaa is [3, 16], 3 heads of size 16")
    tensors = random_model(tiny_v5("v5.0", layers=1), seed=7).tensors
    wrong = {f"blocks.0.att.time_{what}": np.zeros(5, np.float32) for what in ("decay", "first")}
    assert refusal(path, {**tensors, **wrong}) == (
        "blocks.0.att.time_decay has 5 heads; expected a divisor of 64, the model's width"
    )
