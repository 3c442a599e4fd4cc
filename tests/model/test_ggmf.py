"""Files of rwkv.cpp are read as the model written to them. Errors of damaged ones name file and tensor."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from tests.support.damaged_files import refusal
from tests.support.ggmf import ggmf_tensors, save_ggmf, write_ggmf
from tests.support.gguf import encode
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.older_models import OLDER_SHAPES
from tests.support.reference import forward, relative_error

MODELS = {shape.version: random_model(shape, seed=1) for shape in (*OLDER_SHAPES, tiny_shape())}
V7 = MODELS["v7"]
TOKENS = [1, 17, 3, 95, 40, 2, 2]
COMPUTED = {"v4": ("time_decay",), "v5.0": ("time_decay", "time_first"), "v5.1": ("time_decay",)}
COMPUTED["v5.2"] = COMPUTED["v5.1"]
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@pytest.mark.parametrize("kind", ["FP32", "FP16"])
@every_model
def test_floats_come_out_as_they_went_in(model: TensorModel, kind: str, tmp_path: Path) -> None:
    expected, _ = forward(model, TOKENS)
    with open_model(save_ggmf(model, tmp_path / "model.bin", kind)) as opened:
        assert opened.shape == model.shape
        assert set(opened.names) == set(model.names)
        for name in opened.names:
            computed = name.endswith(COMPUTED.get(model.shape.version, ("nothing",)))
            np.testing.assert_allclose(
                opened.tensor(name).astype(np.float32), model.tensor(name), rtol=0, atol=5e-5 * computed, err_msg=name
            )
        assert relative_error(forward(opened, TOKENS)[0], expected) < 1e-5


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks(kind: str, tmp_path: Path) -> None:
    name, number = "blocks.1.ffn.value.weight", GGMLQuantizationType[kind]
    with open_model(save_ggmf(V7, tmp_path / "model.bin", kind)) as opened:
        assert (opened.block_type(name), opened.block_type("head.weight")) == (kind, None)
        np.testing.assert_array_equal(opened.tensor(name), quants.dequantize(encode(V7.tensor(name), number), number))


def test_versions_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    with open_model(save_ggmf(V7, path, "FP16", version=100)) as opened:
        assert opened.shape == V7.shape
    with pytest.raises(ModelError, match=r"model.bin: tensor blocks.0.att.w1 is in Q4_0 of version 100"):
        open_model(save_ggmf(V7, path, "Q4_0", version=100))
    with pytest.raises(ModelError, match=r"is a file of rwkv\.cpp of version 102; expected 100 or 101"):
        open_model(save_ggmf(V7, path, version=102))


def test_decays_that_f32_has_rounded_to_0_or_1_stay_finite(tmp_path: Path) -> None:
    model = MODELS["v5.2"]
    tensors = ggmf_tensors(model)
    decay = tensors["blocks.0.att.time_decay"]
    decay[0, :2, 0] = 0, 1
    with open_model(write_ggmf(tmp_path / "model.bin", model, tensors)) as opened:
        w = opened.tensor("blocks.0.att.time_decay")
    assert np.isfinite(w).all()
    assert np.exp(-np.exp(w))[0, :2].tolist() == pytest.approx([0, 1])


def test_truncated_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    sound = save_ggmf(V7, path).read_bytes()
    for size in (*range(4, 4000, 37), *range(4000, len(sound), 9973), len(sound) - 1):
        said = refusal(path, sound[:size])
        assert "damaged or truncated file of rwkv.cpp" in said or "missing" in said


@pytest.mark.parametrize(
    ("start", "value", "message"),
    [
        (8, 97, "the header's vocab_size is 97; expected 96, as the tensors have it"),
        (12, 63, "the header's width is 63; expected 64"),
        (16, 3, "the header's num_layers is 3; expected 2"),
        (24, 0, "has 0 dimensions and a name of 10 bytes; expected 1 to 3 and 1 to 1024"),
        (24, 1 << 31, "has 2147483648 dimensions"),
        (28, 0, "a name of 0 bytes"),
        (28, 1 << 31, "a name of 2147483648 bytes"),
        (32, 4, "tensor emb.weight has the type number 4; expected one of 0 (F32), 1 (F16), 2 (Q4_0)"),
        (36, 0, "tensor emb.weight has the dimensions [0, 96]; expected only one such tensor"),
        (40, 0xFFFFFFFF, "tensor emb.weight has 1099511627520 bytes from 54 on; expected an end within"),
    ],
)
def test_a_header_that_makes_no_sense(start: int, value: int, message: str, tmp_path: Path) -> None:
    sound = save_ggmf(V7, tmp_path / "model.bin").read_bytes()
    damaged = sound[:start] + struct.pack("<I", value) + sound[start + 4 :]
    assert message in refusal(tmp_path / "model.bin", damaged)


def test_a_tensor_twice_and_a_name_that_is_no_text(tmp_path: Path) -> None:
    sound = save_ggmf(V7, tmp_path / "model.bin").read_bytes()
    twice = refusal(tmp_path / "model.bin", sound + sound[24:])
    assert "tensor emb.weight has the dimensions [64, 96]; expected only one such tensor" in twice
    assert "is not valid UTF-8" in refusal(tmp_path / "model.bin", sound.replace(b"emb.weight", b"\xffmb.weight"))
