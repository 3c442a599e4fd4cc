"""`rnn-engine logits` compared with the reference, and its refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import Command
from tests.support.models import TensorModel, random_model, save_safetensors
from tests.support.older_models import tiny_v5
from tests.support.reference import forward

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5]


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_writes_logits_and_state(
    rnn_engine: Command, model_file: Path, tiny_model: TensorModel, tmp_path: Path, chunk: int
) -> None:
    output = tmp_path / "out.npz"
    tokens = ",".join(map(str, TOKENS))
    rnn_engine("logits", model_file, "--tokens", tokens, "--device", "cpu", "--chunk", chunk, "-o", output)
    logits, state = forward(tiny_model, TOKENS)
    with np.load(output) as file:
        assert sorted(file) == sorted(
            ["logits", *(f"state.{layer}.{name}" for layer in (0, 1) for name in ("att_shift", "wkv", "ffn_shift"))]
        )
        assert file["logits"].dtype == np.float32
        np.testing.assert_allclose(file["logits"], logits, atol=1e-3)
        for name, layers in state.items():
            for layer, values in enumerate(layers):
                np.testing.assert_allclose(file[f"state.{layer}.{name}"], values, atol=1e-3)


def test_takes_tokens_from_a_file(rnn_engine: Command, model_file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.array(TOKENS, np.uint16))
    for name, tokens in (("a.npz", ",".join(map(str, TOKENS))), ("b.npz", str(tmp_path / "tokens.npy"))):
        rnn_engine("logits", model_file, "--tokens", tokens, "--device", "cpu", "-o", tmp_path / name)
    with np.load(tmp_path / "a.npz") as first, np.load(tmp_path / "b.npz") as second:
        np.testing.assert_array_equal(first["logits"], second["logits"])


@pytest.mark.parametrize("options", [[], ["--v5-group-norm-eps", "1e-5"]])
def test_takes_the_group_norm_epsilon_of_an_rwkv_5(rnn_engine: Command, tmp_path: Path, options: list[str]) -> None:
    model = random_model(tiny_v5(), seed=1)
    path = save_safetensors(model, tmp_path / "v5.safetensors")
    rnn_engine("logits", path, "--tokens", "3,1,4", "--device", "cpu", *options, "-o", tmp_path / "out.npz")
    shape = replace(tiny_v5(), group_norm_epsilon=1e-5 if options else 64e-5)
    logits, _ = forward(TensorModel(shape, model.tensors), [3, 1, 4])
    with np.load(tmp_path / "out.npz") as file:
        np.testing.assert_allclose(file["logits"], logits, atol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("1,x", "'1,x'; expected token ids such as 1,2,3, or a FILE.npy"),
        ("", "''; expected token ids"),
        ("1,96", "--tokens: 96 is not allowed; expected token ids from 0 to 95"),
        ("-1", "--tokens: -1"),
        ("missing.npy", "No such file"),
    ],
)
def test_refuses_tokens(rnn_engine: Command, model_file: Path, tmp_path: Path, tokens: str, words: str) -> None:
    output = tmp_path / "out.npz"
    said = rnn_engine("logits", model_file, f"--tokens={tokens}", "--device", "cpu", "-o", output, code=2)
    assert words in " ".join(said.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("array", [np.zeros((2, 2), np.int64), np.zeros(3), np.zeros(0, np.int64)])
def test_refuses_files_that_hold_no_tokens(
    rnn_engine: Command, model_file: Path, tmp_path: Path, array: np.ndarray
) -> None:
    np.save(tmp_path / "tokens.npy", array)
    output = tmp_path / "out.npz"
    rnn_engine("logits", model_file, "--tokens", tmp_path / "tokens.npy", "--device", "cpu", "-o", output, code=2)
    assert not output.exists()


def test_missing_folder_is_told_before_the_model_is_read(rnn_engine: Command, tmp_path: Path) -> None:
    output = tmp_path / "missing" / "out.npz"
    said = rnn_engine("logits", "missing.safetensors", "--tokens", "1", "-o", output, code=1)
    assert "missing/" in said
