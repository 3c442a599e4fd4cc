"""`rnn-engine convert`: its output, and its refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rnn_engine.demo import model_path
from rnn_engine.loading.runner import open_model
from rnn_engine.model import LoraChoice
from rnn_engine.tokenizer import load_tokenizer
from tests.support.cli import Command
from tests.support.gguf import save_gguf
from tests.support.loras import draw_pair, save_ai00
from tests.support.models import TensorModel, random_model, save_safetensors, tiny_shape


def test_it_says_what_it_wrote(rnn_engine: Command, model_file: Path, tiny_model: TensorModel, tmp_path: Path) -> None:
    shown = rnn_engine("convert", model_file, tmp_path / "out.st")
    assert "out.st: ai00's safetensors, in f16" in shown
    assert "RWKV v7, layers 2, width 64" in shown
    assert f"tensors: {len(tiny_model.names)} float16" in shown
    assert "MB, from " in shown


def test_a_model_is_converted_by_its_name_without_its_tokenizer(rnn_engine: Command, tmp_path: Path) -> None:
    shown = rnn_engine("convert", "demo", tmp_path / "out.st")
    assert "RWKV v7, layers 6" in shown
    hint = f"hint: the tokenizer is a file of its own; copy {model_path().parent / 'tokenizer.json'} to {tmp_path}\n"
    assert shown.endswith(hint)
    (tmp_path / "tokenizer.json").touch()
    assert "hint" not in rnn_engine("convert", "demo", tmp_path / "out.st", "--force")


def test_what_is_there_is_replaced_with_force_alone(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("out.pth", "folder/mine"):
        (tmp_path / name).write_text("mine")
        target = tmp_path / name.partition("/")[0]
        assert "exists already; --force replaces it" in rnn_engine("convert", model_file, target, code=2)
    assert (tmp_path / "out.pth").read_text() == "mine"
    rnn_engine("convert", model_file, tmp_path / "out.pth", "--force")
    with open_model(tmp_path / "out.pth") as written:
        assert written.names


@pytest.mark.parametrize("name", ["rwkv7-0.1B-g1", "RWKV-x070-2.9b", "goose.world", "v7.0", "out.onnx/", "out.gguf/"])
def test_a_name_whose_ending_no_files_have_is_a_folder(name: str, rnn_engine: Command, tmp_path: Path) -> None:
    source = save_safetensors(random_model(tiny_shape(head_size=64), seed=0), tmp_path / "model.st", "f32")
    assert "a folder with flash-linear-attention's" in rnn_engine("convert", source, f"{tmp_path}/{name}")
    rnn_engine("convert", source, tmp_path / name, "--force")  # an existing folder is a folder
    with open_model(tmp_path / name) as written:
        assert written.names


@pytest.mark.parametrize("name", ["out.bin", "out.ONNX", "out.safetensor", "0.1B.pt", "out.safetenors", "out.gguff"])
def test_endings_of_other_files_and_misspelt_ones_are_refused(
    name: str, rnn_engine: Command, model_file: Path, tmp_path: Path
) -> None:
    assert "no format has the ending" in rnn_engine("convert", model_file, tmp_path / name, code=2)
    assert not (tmp_path / name).exists()


def test_force_replaces_no_folder_but_one_that_it_has_written(rnn_engine: Command, tmp_path: Path) -> None:
    source = save_safetensors(random_model(tiny_shape(head_size=64), seed=0), tmp_path / "model.st", "f32")
    mine, target = tmp_path / "mine", tmp_path / "out"
    for name, words in (("", "is not replaced, since it holds 'thesis.txt'"), ("model.pth", "it holds 'thesis.txt'")):
        (mine / name).mkdir(parents=True)
        (mine / name / "thesis.txt").write_text("years of work")
        said = rnn_engine("convert", source, mine / name, "--force", code=2)
        assert words in said
        assert (mine / name / "thesis.txt").read_text() == "years of work"
    for _ in range(2):
        rnn_engine("convert", source, target, "--force")
        with open_model(target) as written:
            assert written.names
    (target / "tokenizer.json").write_text("{}")
    assert "it holds 'tokenizer.json'" in rnn_engine("convert", source, target, "--force", code=2)
    assert (target / "tokenizer.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model.st", "out"]


def test_loras_are_merged(rnn_engine: Command, model_file: Path, tiny_model: TensorModel, tmp_path: Path) -> None:
    name = "blocks.1.att.key"
    lora = save_ai00({name: draw_pair(tiny_model, f"{name}.weight", 4)}, tmp_path / "lora.st")
    rnn_engine("convert", model_file, tmp_path / "out.safetensors", "--lora", f"{lora}:8")
    with (
        open_model(model_file, [LoraChoice.parse(f"{lora}:8")]) as merged,
        open_model(tmp_path / "out.safetensors") as written,
    ):
        for tensor in merged.names:
            assert np.array_equal(written.tensor(tensor), merged.tensor(tensor))
        assert not np.array_equal(written.tensor(f"{name}.weight"), tiny_model.tensor(f"{name}.weight"))


def test_a_vocabulary_of_byte_strings_is_kept(rnn_engine: Command, tiny_model: TensorModel, tmp_path: Path) -> None:
    pieces = [b"", *(bytes([byte]) for byte in range(32, 100)), b"it's", b"\"'\\\n", b"\xff\x00"]
    source = save_gguf(tiny_model, tmp_path / "a.gguf", tokens=[repr(piece)[2:-1].encode() for piece in pieces])
    shown = rnn_engine("convert", source, tmp_path / "b.gguf", "--weights", "f16")
    assert "b.gguf: GGUF for llama.cpp" in shown
    before, after = (load_tokenizer("auto", tmp_path / name, 96) for name in ("a.gguf", "b.gguf"))
    assert after.name == "gguf"
    assert [after.decode_bytes(token) for token in range(96)] == [before.decode_bytes(token) for token in range(96)]
    assert after.decode_bytes(70) == b"\"'\\\n"


def test_what_is_not_known_is_refused(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    said = rnn_engine("convert", model_file, tmp_path / "out.onnx", code=2)
    assert (
        "a file name that ends in .safetensors, .st, .prefab, .pth, .gguf, or a folder name, which may end in a" in said
    )
    assert "expected one of the formats" in rnn_engine("convert", model_file, "x.pth", "--weights", "f8", code=2)
    assert "does not exist" in rnn_engine("convert", tmp_path / "no.pth", tmp_path / "out.pth", code=1)


def test_help_lists_the_formats(rnn_engine: Command) -> None:
    shown = " ".join(rnn_engine("convert", "--help").split())
    assert ".gguf: GGUF for llama.cpp, with the vocabulary" in shown
