"""ai00's prefab models: the written structure, and reading of quantised matrices."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.convert.convert import convert_model
from rnn_engine.convert.writers import model_info
from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from rnn_engine.quantised import BLOCK_FORMATS, NF4_LEVELS, SF4_LEVELS, quantise
from rnn_engine.types import ModelShape
from tests.support.models import TensorModel, deep_embedded, random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6

WIDE = tiny_shape(layers=1, width=128, head_size=64, ffn=256)
MATRIX = "blocks.0.ffn.key.weight"


def write(model: TensorModel, folder: Path) -> Path:
    path = save_safetensors(model, folder / "model.safetensors", "f16")
    with open_model(path) as opened:
        convert_model(opened, folder / "model.prefab", force=True)
    return folder / "model.prefab"


def load(path: Path) -> Any:  # noqa: ANN401
    return cbor2.loads(path.read_bytes())


def array(values: NDArray[Any], shape: tuple[int, ...] | None = None) -> dict[str, Any]:
    sizes = [*reversed(values.shape if shape is None else shape), 1, 1, 1][:4]
    return {"shape": sizes, "data": np.ascontiguousarray(values).tobytes()}


def test_deep_embed_is_told_as_the_rwkv_7_that_it_is_made_from() -> None:
    plain = tiny_shape()
    assert model_info(deep_embedded(plain)) == model_info(plain)


def test_the_structure_is_that_of_web_rwkv(tmp_path: Path) -> None:
    content = load(write(random_model(tiny_v6(vocab=90), seed=1), tmp_path))
    assert list(content) == ["context", "info", "rescale", "sep", "tensor"]
    assert content["info"]["version"] == "V6"
    assert content["info"]["custom"] == {"V6": {"time_mix": 6, "time_decay": 9}}
    assert (content["info"]["num_vocab"], content["info"]["num_hidden"], content["info"]["num_head"]) == (90, 100, 4)
    assert content["tensor"]["embed"]["w"]["shape"] == [64, 96, 1, 1]
    assert content["tensor"]["head"]["w"]["Fp16"]["shape"] == [64, 96, 1, 1]
    attention = content["tensor"]["layers"][1]["att"]
    assert attention["time_mix"]["shape"] == [64, 1, 5, 1]
    assert attention["group_norm"]["w"]["shape"] == [16, 4, 1, 1]
    assert attention["time_mix_w1"]["Fp16"]["shape"] == [64, 30, 1, 1]
    assert len(attention["time_first"]["data"]) == 4 * 64  # f32


@pytest.mark.parametrize(
    "shape", [tiny_v4(layers=8), tiny_v5(layers=8), tiny_v6(layers=8)], ids=lambda shape: shape.version
)
def test_matrices_that_were_halved_are_scaled_back(shape: ModelShape, tmp_path: Path) -> None:
    model = random_model(shape, seed=2)
    path = write(model, tmp_path)
    name = "blocks.7.att.output.weight"
    stored = np.frombuffer(load(path)["tensor"]["layers"][7]["att"]["w_o"]["Fp16"]["data"], np.float16)
    least = 2.0**-24  # the smallest f16 number, which halving loses, in ai00 too
    np.testing.assert_allclose(stored * 2, model.tensor(name).reshape(-1), rtol=0, atol=least)
    with open_model(path) as opened:
        for each in (name, "blocks.7.ffn.value.weight"):
            np.testing.assert_allclose(opened.tensor(each), model.tensor(each), rtol=0, atol=least)
        assert np.array_equal(opened.tensor("blocks.7.att.time_decay"), model.tensor("blocks.7.att.time_decay"))


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("kind", ["int8", "nf4", "sf4"])
def test_quantised_matrices_keep_their_blocks(kind: str, numbered: bool, tmp_path: Path) -> None:
    model = random_model(WIDE, seed=3)
    path = write(model, tmp_path)
    content = load(path)
    blocks = quantise(BLOCK_FORMATS[kind], model.tensor(MATRIX))
    parts = {"w": array(blocks.codes.reshape(256, -1)), "m": array(blocks.figures.reshape(-1))}
    if kind != "int8":
        parts["q"] = array(np.array(NF4_LEVELS if kind == "nf4" else SF4_LEVELS, np.float32))
    variant: Any = (1 if kind == "int8" else 2) if numbered else ("Int8" if kind == "int8" else "Fp4")
    content["tensor"]["layers"][0]["ffn"]["w_k"] = {variant: parts}
    path.write_bytes(cbor2.dumps(content))
    with open_model(path) as opened:
        found = opened.blocks(MATRIX)
        assert found is not None
        assert opened.block_type(MATRIX) == kind
        assert np.array_equal(found.codes, blocks.codes)
        assert np.array_equal(opened.tensor(MATRIX), blocks.numbers())


def test_blocks_that_reach_over_rows_are_read_as_numbers(tmp_path: Path) -> None:
    model = random_model(tiny_shape(layers=1), seed=3)  # rows of 64 in blocks of 128
    path = write(model, tmp_path)
    content = load(path)
    flat = quantise(BLOCK_FORMATS["int8"], model.tensor(MATRIX).reshape(1, -1))
    parts = {"w": array(flat.codes.reshape(256, 64)), "m": array(flat.figures.reshape(-1))}
    content["tensor"]["layers"][0]["ffn"]["w_k"] = {"Int8": parts}
    path.write_bytes(cbor2.dumps(content))
    with open_model(path) as opened:
        assert opened.blocks(MATRIX) is None
        assert np.array_equal(opened.tensor(MATRIX), flat.numbers().reshape(256, 64))


def test_a_prefab_holds_f16_alone(tmp_path: Path) -> None:
    path = save_safetensors(random_model(WIDE, seed=1), tmp_path / "model.safetensors", "f16")
    with open_model(path) as opened, pytest.raises(ModelError, match=r"can't be int8 in a prefab; expected --weights"):
        convert_model(opened, tmp_path / "model.prefab", "int8")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(random_model(WIDE, seed=1), tmp_path)
    whole = path.read_bytes()
    generator = np.random.default_rng(4)
    for end in (*generator.integers(10, len(whole), 40).tolist(), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(ModelError, match=r"model\.prefab: damaged"):
            open_model(path)
    for place in generator.integers(9, 600, 200).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        with suppress(ModelError):  # and no other error
            open_model(path).close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["info"].update(version="V9"), "'V9' is not one of V4, V5, V6, V7"),
        (lambda content: content.update(rescale=0), "a size is not a number of at least 1"),
        (lambda content: content["tensor"].pop("head"), "KeyError: 'head'"),
        (lambda content: content["tensor"]["head"]["w"].update(Int4={}), "damaged prefab model: ValueError"),
        (lambda content: content["tensor"]["embed"]["w"].update(shape=[1 << 62, 8, 1, 1]), "has 24576 bytes"),
        (lambda content: content["tensor"]["layers"].append({}), "damaged prefab model: KeyError"),
    ],
)
def test_another_structure_is_refused(change: Any, message: str, tmp_path: Path) -> None:  # noqa: ANN401
    path = write(random_model(WIDE, seed=1), tmp_path)
    content = load(path)
    change(content)
    path.write_bytes(cbor2.dumps(content))
    with pytest.raises(ModelError, match=message):
        open_model(path)
