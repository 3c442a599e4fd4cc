"""Files whose tensors don't form a supported model are refused, with the reason in the message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from tests.support.models import random_model, tiny_shape

TENSORS = random_model(tiny_shape(layers=3, width=32), seed=1).tensors


def refusal(tmp_path: Path, tensors: Mapping[str, NDArray[Any]]) -> str:
    path = tmp_path / "model.safetensors"
    save_file(dict(tensors), path)
    with pytest.raises(ModelError) as caught:
        open_model(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def without(*names: str) -> dict[str, NDArray[Any]]:
    return {name: values for name, values in TENSORS.items() if name not in names}


def names_only(names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: np.zeros(1, np.float32) for name in names}


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, without("blocks.1.att.k_a")) == "1 tensor missing: blocks.1.att.k_a"


def test_missing_tensors_are_named_together(tmp_path: Path) -> None:
    message = refusal(tmp_path, without("emb.weight", "blocks.2.att.v1", "ln_out.bias"))
    assert message == "3 tensors missing: emb.weight; blocks.2.att.v1; ln_out.bias"


def test_many_missing_tensors_are_abbreviated(tmp_path: Path) -> None:
    message = refusal(tmp_path, {name: values for name, values in TENSORS.items() if "ffn" not in name})
    assert message.startswith("9 tensors missing: blocks.0.ffn.x_k; blocks.0.ffn.key.weight; ")
    assert message.endswith("; blocks.1.ffn.value.weight; and 3 more")


def test_the_first_layer_alone_may_lack_the_value_adapter(tmp_path: Path) -> None:
    message = refusal(tmp_path, without(*(f"blocks.{layer}.att.v{part}" for layer in (0, 1) for part in range(3))))
    assert message == "3 tensors missing: blocks.1.att.v0; blocks.1.att.v1; blocks.1.att.v2"


@pytest.mark.parametrize("layer", [3, 7])
@pytest.mark.parametrize("rest", ["lora_leftover", "att.key.weight", "ffn.x"])
def test_a_stray_name_that_makes_another_layer_is_named(layer: int, rest: str, tmp_path: Path) -> None:
    stray = f"blocks.{layer}.{rest}"
    message = refusal(tmp_path, TENSORS | {stray: np.zeros(1, np.float32)})
    assert message.endswith(f"; blocks.{layer} is counted as a layer because the file has {stray}")


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, {name: values for name, values in TENSORS.items() if "blocks.1." not in name})
    assert message.startswith("1 layer missing below blocks.2: blocks.1; blocks.2 is counted as a layer because ")


def test_an_absurd_layer_number_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, TENSORS | names_only(["blocks.99999.att.r_k"]))
    assert message.startswith("99996 layers missing below blocks.99999: blocks.3; ")
    assert "missing" in refusal(tmp_path, names_only(["blocks.99999999999999.att.r_k"]))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blocks.1.att.w2", (15, 32), "blocks.1.att.w2 is [15, 32], expected [16, 32]"),
        ("head.weight", (95, 32), "head.weight is [95, 32], expected [96, 32]"),
        ("blocks.0.att.key.weight", (32, 64), "blocks.0.att.key.weight is [32, 64], expected [32, 32]"),
        ("blocks.0.ffn.value.weight", (128, 32), "blocks.0.ffn.value.weight is [128, 32], expected [32, 128]"),
        ("ln_out.weight", (2, 32), "ln_out.weight is [2, 32], expected [32]"),
        ("ln_out.weight", (), "ln_out.weight is [], expected [32]"),
        ("blocks.2.att.r_k", (1, 32), "blocks.2.att.r_k is [1, 32], expected [2, 16]"),
    ],
)
def test_a_wrong_shape_is_shown_beside_the_right_one(
    name: str, shape: tuple[int, ...], expected: str, tmp_path: Path
) -> None:
    message = refusal(tmp_path, TENSORS | {name: np.zeros(shape, np.float32)})
    assert message == f"1 tensor of the wrong shape: {expected}"


def test_a_size_that_no_tensor_gives_is_shown_by_its_letter(tmp_path: Path) -> None:
    wrong = {f"blocks.{layer}.att.r_k": np.zeros(32, np.float32) for layer in range(3)}
    message = refusal(tmp_path, TENSORS | wrong)
    assert message.startswith("3 tensors of the wrong shape: blocks.0.att.r_k is [32], expected [H, N]; ")


def test_an_empty_tensor_is_refused(tmp_path: Path) -> None:
    empty = np.zeros((0, 32), np.float32)
    assert "emb.weight is [0, 32]" in refusal(tmp_path, TENSORS | {"emb.weight": empty, "head.weight": empty})


def test_heads_must_make_up_the_width(tmp_path: Path) -> None:
    wrong = {f"blocks.{layer}.att.r_k": np.zeros((3, 16), np.float32) for layer in range(3)}
    message = refusal(tmp_path, TENSORS | wrong)
    assert message.startswith("blocks.0.att.r_k is [3, 16], 3 heads of size 16; expected a product of 32")


def test_a_wrong_element_type_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, TENSORS | {"emb.weight": np.zeros((96, 32), np.float64)})
    assert message == "1 tensor of the wrong element type: emb.weight is float64; expected float16, bfloat16, float32"


def test_tensors_that_would_be_passed_over_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, TENSORS | names_only(["blocks.0.att.new_trick", "blocks.2.extra.q"]))
    assert message.startswith("2 tensors that no served RWKV version has: blocks.0.att.new_trick; blocks.2.extra.q; ")


def test_strange_names_are_shown_escaped_and_cut(tmp_path: Path) -> None:
    message = refusal(tmp_path, TENSORS | names_only(["\x1b[31m red", "x" * 5000]))
    assert "\x1b" not in message
    assert "\\x1b[31m red" in message
    assert len(message) < 500


def test_another_kind_of_model_is_refused_by_its_names(tmp_path: Path) -> None:
    message = refusal(tmp_path, names_only(["transformer.wte.weight", "lm_head.weight"]))
    assert message.startswith("no RWKV version has these tensors")
    assert "transformer.wte.weight" in message
