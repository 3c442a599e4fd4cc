"""GGUF files of llama.cpp are read as the model written to them: names, transforms, types, metadata."""

from __future__ import annotations

import re
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, quants
from numpy.typing import NDArray

from rnn_engine.convert.convert import convert_model
from rnn_engine.errors import ModelError
from rnn_engine.forward.weight_choice import WeightChoice, describe_blocks, stored_format
from rnn_engine.forward.weight_formats import STORED_FORMATS, WEIGHT_FORMATS
from rnn_engine.hub import locate_model, model_name
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.model import ModelFile
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.types import TokenRun, run_step
from tests.support.gguf import encode, llama_cpp_tensors, metadata, save_gguf, write_gguf
from tests.support.kept_blocks import KINDS, ONLY_KEPT, random_bytes
from tests.support.models import TensorModel, random_model, tiny_shape
from tests.support.older_models import tiny_v6
from tests.support.reference import forward, relative_error

V7 = random_model(tiny_shape(), seed=1)
WIDE = random_model(tiny_shape(width=256, head_size=64), seed=4)
V6 = random_model(tiny_v6(layers=5, ffn=96), seed=2)
BOTH = pytest.mark.parametrize("model", [V6, V7], ids=["v6", "v7"])
TOKENS = [1, 17, 3, 95, 40, 2, 2]
UNUSED = re.compile(r"blocks\.0\.att\.v[012]")
MATRIX = "blocks.1.ffn.value.weight"
STORED_MATRIX = "blk.1.channel_mix_value.weight"


def assert_same(opened: ModelFile, model: TensorModel) -> None:
    assert opened.shape == model.shape
    assert set(opened.names) == {name for name in model.names if not UNUSED.fullmatch(name)}
    for name in opened.names:
        np.testing.assert_array_equal(opened.tensor(name).astype(np.float32), model.tensor(name), err_msg=name)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@BOTH
def test_floats_come_out_as_they_went_in(model: TensorModel, kind: str, tmp_path: Path) -> None:
    with open_model(save_gguf(model, tmp_path / "model.gguf", kind)) as opened:
        assert_same(opened, model)
        assert opened.tensor(MATRIX).dtype.name == {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[kind]
        assert opened.block_type(MATRIX) is None


@BOTH
def test_mixes_as_tensors_of_their_own(model: TensorModel, tmp_path: Path) -> None:
    with open_model(save_gguf(model, tmp_path / "model.gguf", fused=False)) as opened:
        assert_same(opened, model)


@pytest.mark.parametrize("every", [1, 2, 6])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_matrices_that_were_halved_with_the_residual_are_scaled_back(every: int, kind: str, tmp_path: Path) -> None:
    with (
        open_model(save_gguf(V6, tmp_path / "plain.gguf", kind)) as plain,
        open_model(save_gguf(V6, tmp_path / "halved.gguf", kind, rescale_every=every)) as halved,
    ):
        for name in plain.names:
            # f16 rounds numbers below its normal range
            np.testing.assert_allclose(
                halved.tensor(name), plain.tensor(name), atol=1e-6 * (kind == "F16"), err_msg=name
            )


@BOTH
def test_logits_are_those_of_the_model_in_memory(model: TensorModel, tmp_path: Path) -> None:
    expected, _ = forward(model, TOKENS)
    with open_model(save_gguf(model, tmp_path / "model.gguf")) as opened:
        logits, _ = forward(opened, TOKENS)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize(
    ("kind", "bound"), [("Q8_0", 1 / 254), ("Q5_1", 1 / 31), ("Q5_0", 1 / 16), ("Q4_1", 1 / 15), ("Q4_0", 1 / 8)]
)
@BOTH
def test_numbers_in_blocks_are_within_a_step_of_what_went_in(
    model: TensorModel, kind: str, bound: float, tmp_path: Path
) -> None:
    """A bound is relative to the greatest number of a block. The scales' rounding to f16 adds a little."""
    with open_model(save_gguf(model, tmp_path / "model.gguf", kind)) as opened:
        for name in ("emb.weight", "head.weight", MATRIX):
            expected = model.tensor(name).reshape(-1, 32)
            error = np.abs(opened.tensor(name).reshape(-1, 32) - expected).max(axis=1)
            assert (error <= 1.1 * bound * np.abs(expected).max(axis=1)).all()
            assert opened.block_type(name) == kind
        assert opened.block_type("blocks.0.att.ln_x.weight") is None


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@BOTH
def test_logits_are_those_of_the_rounded_weights(model: TensorModel, kind: str, tmp_path: Path) -> None:
    expected, _ = forward(model, TOKENS)
    number = GGMLQuantizationType[kind]
    with open_model(save_gguf(model, tmp_path / "model.gguf", kind)) as opened:
        blocks = [name for name in opened.names if opened.block_type(name) == kind]
        rounded = {name: quants.dequantize(encode(model.tensor(name), number), number) for name in blocks}
        logits, _ = forward(opened, TOKENS)
    exact, _ = forward(TensorModel(model.shape, model.tensors | rounded), TOKENS)
    np.testing.assert_array_equal(logits, exact)
    assert 0 < relative_error(logits, expected) < {"Q8_0": 0.05, "Q4_0": 0.5}[kind]


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"])
def test_blocks_that_only_llama_cpp_writes(kind: str, tmp_path: Path) -> None:
    number = GGMLQuantizationType[kind]
    block_size, block_bytes = GGML_QUANT_SIZES[number]
    rows, columns = V7.tensor(MATRIX).shape
    assert columns % block_size == 0
    blocks = np.random.default_rng(4).integers(0, 256, (rows, columns // block_size * block_bytes), np.uint8)
    blocks &= 0x3F  # so that no scale is infinite, wherever it lies in the block
    tensors = llama_cpp_tensors(V7) | {STORED_MATRIX: blocks}
    path = write_gguf(tmp_path / "model.gguf", "rwkv7", metadata(V7.shape), tensors, encoded={STORED_MATRIX: number})
    with open_model(path) as opened:
        np.testing.assert_array_equal(opened.tensor(MATRIX), quants.dequantize(blocks, number))
        assert opened.tensor(MATRIX).dtype == np.float32
        assert opened.block_type(MATRIX) == kind


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_what_a_kernel_multiplies_with_is_kept_as_it_is(kind: str, tmp_path: Path) -> None:
    with open_model(save_gguf(V7, tmp_path / "model.gguf", kind)) as opened:
        for name in ("emb.weight", "head.weight", MATRIX):
            matrix, blocks = opened.tensor(name), opened.blocks(name)
            stored = stored_format(matrix.dtype, opened.block_type(name))
            assert stored.name == kind.lower()
            assert blocks is not None
            np.testing.assert_array_equal(stored.unpack(stored.pack(blocks), *matrix.shape), matrix)
        assert opened.blocks("blocks.0.att.w1") is None
        assert list(describe_blocks(opened, WeightChoice.parse("stored").of(opened.shape))) == [
            f"matrices kept in the blocks of the file: 14 in {kind}"
        ]


@pytest.mark.parametrize("weights", ["stored", "same"])
@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_an_importance_matrix_are_kept(kind: str, weights: str, tmp_path: Path) -> None:
    number = GGMLQuantizationType[kind]
    tensors = llama_cpp_tensors(V7) | {STORED_MATRIX: random_bytes(kind, *V7.tensor(MATRIX).shape)}
    path = write_gguf(tmp_path / "model.gguf", "rwkv7", metadata(V7.shape), tensors, encoded={STORED_MATRIX: number})
    with open_model(path) as opened:
        chosen = STORED_FORMATS[kind.lower()]
        matrix, blocks = opened.tensor(MATRIX), opened.blocks(MATRIX)
        assert blocks is not None
        assert np.array_equal(chosen.unpack(chosen.pack(blocks), *matrix.shape), matrix)
        if kind not in ONLY_KEPT:
            assert not np.array_equal(chosen.unpack(chosen.pack(matrix), *matrix.shape), matrix)
        expected, _ = forward(opened, TOKENS, dtype=np.float64)
        of_matrix = None if weights == "stored" else chosen
        runner = load_runner(
            opened,
            size=RunnerSize(1, max_rows=len(TOKENS)),
            weights=lambda name: of_matrix if name == MATRIX else WEIGHT_FORMATS["f32"],
        )
    readout = run_step(runner, [TokenRun(0, TOKENS, rows=len(TOKENS))])
    logits = np.array([readout.full_row(row) for row in range(len(TOKENS))])
    runner.close()
    assert relative_error(logits, expected) < 1e-4


MIX: dict[str, str] = {"token_embd": "Q4_K", "output": "Q6_K", "channel_mix_value": "Q6_K", "time_mix_output": "Q5_K"}


def save_mixture(folder: Path) -> Path:
    """Write a model whose matrices are in the blocks of llama.cpp's Q4_K_M, and some others."""
    tensors = llama_cpp_tensors(WIDE)
    encoded: dict[str, GGMLQuantizationType] = {}
    for name in [name for name, values in tensors.items() if _is_large(name, values)]:
        kind = MIX.get(name.removesuffix(".weight").rpartition(".")[2], "Q4_K")
        tensors[name] = random_bytes(kind, *tensors[name].shape, seed=len(encoded))
        encoded[name] = GGMLQuantizationType[kind]
    return write_gguf(folder / "mixture.gguf", "rwkv7", metadata(WIDE.shape), tensors, "F32", encoded=encoded)


def _is_large(name: str, values: NDArray[Any]) -> bool:
    return values.ndim == 2 and min(values.shape) > 64 and name.endswith(".weight")


def test_a_model_of_several_kinds_of_blocks_runs_in_them(tmp_path: Path) -> None:
    path = save_mixture(tmp_path)
    with open_model(path) as opened:
        (line,) = describe_blocks(opened, WeightChoice.parse("stored").of(opened.shape))
        assert line == "matrices kept in the blocks of the file: 9 in Q4_K, 2 in Q5_K, 3 in Q6_K"
        expected, _ = forward(opened, TOKENS, dtype=np.float64)
        runner = load_runner(opened, size=RunnerSize(1, max_rows=len(TOKENS)), weights="stored")
    readout = run_step(runner, [TokenRun(0, TOKENS, rows=len(TOKENS))])
    logits = np.array([readout.full_row(row) for row in range(len(TOKENS))])
    runner.close()
    assert relative_error(logits, expected) < 1e-4


def save_every_kind(folder: Path) -> Path:
    """Write a model whose matrices are in blocks of all types in turn, with scales of every size."""
    tensors = llama_cpp_tensors(WIDE)
    large = [name for name, values in tensors.items() if _is_large(name, values)]
    assert len(large) >= len(KINDS)
    encoded = {name: GGMLQuantizationType[kind] for name, kind in zip(large, cycle(KINDS), strict=False)}
    for name, kind in encoded.items():
        tensors[name] = random_bytes(kind.name, *tensors[name].shape, seed=len(name), wild=True)
    return write_gguf(folder / "every.gguf", "rwkv7", metadata(WIDE.shape), tensors, "F32", encoded=encoded)


def test_blocks_of_every_type_are_copied_byte_by_byte(tmp_path: Path) -> None:
    files = [save_every_kind(tmp_path), *(tmp_path / name for name in ("copy.gguf", "copy.safetensors", "back.gguf"))]
    for source, target in (files[:2], files[1:3], files[2:]):
        with open_model(source) as opened:
            convert_model(opened, target)
    every, copied, back = (
        {each.name: (each.tensor_type, each.data.tobytes()) for each in GGUFReader(path).tensors}
        for path in (files[0], files[1], files[3])
    )
    assert every == copied == back


@pytest.mark.parametrize("scale", [np.nan, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_with_a_scale_that_is_not_finite_are_refused(kind: str, scale: float, tmp_path: Path) -> None:
    path = save_every_kind(tmp_path)
    [damaged, *_] = [each for each in GGUFReader(path).tensors if each.tensor_type.name == kind]
    at = {"Q2_K": 82, "Q3_K": 108, "Q6_K": 208}.get(kind, 0)  # within a block
    content = bytearray(path.read_bytes())
    start = damaged.data_offset + damaged.n_bytes - GGML_QUANT_SIZES[damaged.tensor_type][1] + at
    content[start : start + 2] = np.float16(scale).tobytes()
    path.write_bytes(content)
    message = rf"every.gguf: tensor {damaged.name} has damaged blocks of {kind}; expected scales that are finite"
    with open_model(path) as opened:
        for target, weights in (("out.gguf", "stored"), ("out.safetensors", "f32")):
            with pytest.raises(ModelError, match=rf"{target} was not written: .*{message}"):
                convert_model(opened, tmp_path / target, weights)
        with pytest.raises(ModelError, match=message):
            load_runner(opened, "cpu", RunnerSize(1))
    assert [each.name for each in tmp_path.iterdir()] == ["every.gguf"]


def test_the_mixes_of_llama_cpp(tmp_path: Path) -> None:
    with open_model(save_gguf(WIDE, tmp_path / "wide.gguf", "F16")) as whole:
        convert_model(whole, tmp_path / "mixed.gguf", "q4_k_m")
    with open_model(tmp_path / "mixed.gguf") as opened:
        (line,) = describe_blocks(opened, WeightChoice.parse("stored").of(opened.shape))
        assert line == "matrices kept in the blocks of the file: 13 in Q4_K, 1 in Q6_K"
        assert opened.block_type("emb.weight") == "Q4_K"
        assert opened.block_type("head.weight") == "Q6_K"
        assert opened.block_type("blocks.0.att.w1") is None
        for name, most in (("head.weight", 0.02), ("emb.weight", 0.09)):
            exact = WIDE.tensor(name)
            assert np.linalg.norm(opened.tensor(name) - exact) < most * np.linalg.norm(exact)


def test_matrices_that_are_scaled_back_keep_their_blocks(tmp_path: Path) -> None:
    name = "blocks.1.ffn.value.weight"
    whole = random_model(tiny_v6(width=64, ffn=128), seed=3)
    with open_model(save_gguf(whole, tmp_path / "halved.gguf", "Q8_0", rescale_every=1)) as opened:
        blocks = opened.blocks(name)
        assert blocks is not None
        assert np.array_equal(blocks.numbers(), opened.tensor(name))


def test_blocks_that_another_format_replaces_are_told(tmp_path: Path) -> None:
    with open_model(save_gguf(V7, tmp_path / "model.gguf", "Q8_0")) as opened:
        kept, converted = describe_blocks(opened, WeightChoice.parse("f16,head=q8_0").of(opened.shape))
    assert kept == "matrices kept in the blocks of the file: 2 in Q8_0"
    assert converted == "matrices converted from the blocks of the file, as --weights says: 12 in Q8_0 to f16"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rwkv7.block_count", 3, "rwkv7.block_count is 3; expected 2, as the tensors have it"),
        ("rwkv7.embedding_length", 128, "rwkv7.embedding_length is 128; expected 64"),
        ("rwkv7.feed_forward_length", 1, "rwkv7.feed_forward_length is 1; expected 256"),
        ("rwkv7.wkv.head_size", 24, "blk.0.time_mix_r_k.weight has 64 numbers; expected a multiple of 24"),
        ("rwkv7.wkv.head_size", 0, "rwkv7.wkv.head_size is 0; expected an integer of at least 1"),
        ("rwkv7.wkv.head_size", "16", "rwkv7.wkv.head_size is 16; expected an integer"),
        ("rwkv7.attention.layer_norm_epsilon", 1e-3, "rwkv7.attention.layer_norm_epsilon is 0.001"),
        ("general.alignment", 12, "general.alignment is 12; expected a multiple of 8"),
        ("split.count", 3, "one of 3 parts of a model; expected the name that llama.cpp gives it"),
        ("split.count", "3", "split.count is 3; expected a number up to 99999"),
    ],
)
def test_metadata_that_contradicts_is_refused_by_its_key(key: str, value: object, message: str, tmp_path: Path) -> None:
    path = save_gguf(V7, tmp_path / "model.gguf", more={key: value})
    with pytest.raises(ModelError, match=re.escape(message)) as refused:
        open_model(path)
    assert str(path) in str(refused.value)


LETTERS = [b"", *(bytes([byte]) for byte in range(97, 123))]


def save_parts(folder: Path) -> list[Path]:
    save_gguf(V7, folder / "model.gguf", "F16", tokens=LETTERS, tensors_a_part=25)
    return sorted(folder.glob("model-*.gguf"))


def test_a_split_model_is_opened_by_any_of_its_parts(tmp_path: Path) -> None:
    parts = save_parts(tmp_path)
    assert len(parts) == 3
    with open_model(save_gguf(V7, tmp_path / "whole.gguf", "F16")) as whole:
        for path in parts:
            assert load_tokenizer("auto", path, 96).encode("az") == [1, 26]
            with open_model(path) as opened:
                assert opened.fingerprint == whole.fingerprint
                assert opened.num_bytes == sum(part.stat().st_size for part in parts)


def test_a_folder_stands_for_its_only_split_model(tmp_path: Path) -> None:
    parts = save_parts(tmp_path)
    assert locate_model(str(tmp_path)) == parts[0]
    assert model_name(parts[0]) == "model"
    save_gguf(V7, tmp_path / "other.gguf")
    assert locate_model(str(tmp_path)) == tmp_path  # two models


def test_a_part_that_is_missing_or_another_is_named(tmp_path: Path) -> None:
    first, second, third = save_parts(tmp_path)
    moved = second.rename(tmp_path / "moved.gguf")
    with pytest.raises(ModelError, match=rf"lacks 1 part of the model: {second.name}; is the download complete\?"):
        open_model(third)
    with pytest.raises(ModelError, match=r"one of 3 parts of a model; expected the name that llama.cpp gives it"):
        open_model(moved)
    shutil.copy(first, second)
    with pytest.raises(ModelError, match=rf"{second.name} is not part 2 of 3 of a GGUF model, as its name says"):
        open_model(first)
    second.write_bytes(moved.read_bytes()[:1000])
    with pytest.raises(ModelError, match=rf"{second.name}: damaged or truncated GGUF file"):
        open_model(first)


def test_more_tokens_than_the_model_has_are_refused(tmp_path: Path) -> None:
    path = save_gguf(V7, tmp_path / "model.gguf", tokens=[b"a"] * 97)
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens is 97 texts; expected at most 96"):
        open_model(path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_another_architecture_is_refused(architecture: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", architecture, {}, llama_cpp_tensors(V7))
    with pytest.raises(ModelError, match=f"general.architecture is {architecture}; expected one of rwkv6, rwkv7"):
        open_model(path)


def test_names_are_told_as_the_file_has_them(tmp_path: Path) -> None:
    tensors = llama_cpp_tensors(V7)
    del tensors["blk.1.time_mix_key.weight"]
    path = write_gguf(tmp_path / "missing.gguf", "rwkv7", metadata(V7.shape), tensors)
    with pytest.raises(ModelError, match=r"1 tensor missing: blk\.1\.time_mix_key\.weight"):
        open_model(path)
    stray = llama_cpp_tensors(V7) | {f"blk.{V7.shape.num_layers}.lora_leftover": np.ones(4, np.float32)}
    path = write_gguf(tmp_path / "stray.gguf", "rwkv7", metadata(V7.shape), stray)
    with pytest.raises(ModelError, match=r"is counted as a layer because the file has blk\.\d\.lora_leftover"):
        open_model(path)
    tensors = llama_cpp_tensors(V7) | {"blk.1.attn_q.weight": np.ones((4, 4), np.float32)}
    path = write_gguf(tmp_path / "unknown.gguf", "rwkv7", metadata(V7.shape), tensors)
    with pytest.raises(ModelError, match=r"1 tensor that no served RWKV version has: blk\.1\.attn_q\.weight"):
        open_model(path)
    path = write_gguf(tmp_path / "far.gguf", "rwkv7", {}, {"blk.999999.attn_norm.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelError, match=r"1 tensors can't make up 1000000 layers; expected the tensors of all layers"):
        open_model(path)
    tensors = llama_cpp_tensors(V7) | {"blk.1.time_mix_lerp_fused.weight": np.ones((5, 1, 1, 64), np.float32)}
    path = write_gguf(tmp_path / "fused.gguf", "rwkv7", metadata(V7.shape), tensors)
    with pytest.raises(ModelError, match=r"blk\.1\.time_mix_lerp_fused\.weight is \[5, 1, 1, 64\]; expected 6 as"):
        open_model(path)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
@BOTH
def test_a_device_multiplies_with_blocks_as_they_are_stored(model: TensorModel, kind: str, tmp_path: Path) -> None:
    with open_model(save_gguf(model, tmp_path / "model.gguf", kind)) as opened:
        expected, _ = forward(opened, TOKENS, dtype=np.float64)
        runner = load_runner(opened, size=RunnerSize(1, max_rows=len(TOKENS)), weights="stored")
    readout = run_step(runner, [TokenRun(0, TOKENS, rows=len(TOKENS))])
    logits = np.array([readout.full_row(row) for row in range(len(TOKENS))])
    runner.close()
    assert relative_error(logits, expected) < (1e-2 if kind == "Q5_1" else 1e-4)
