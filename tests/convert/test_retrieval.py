"""Files of models for retrieval: converted and quantised, with tensors that are not used, and what is refused."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rnn_engine.convert.convert import convert_model
from rnn_engine.errors import ModelError
from rnn_engine.loading.runner import open_model
from rnn_engine.tensor_files.formats import open_source
from tests.support.models import embedding_shape, random_model, reranker_shape, save_safetensors, tiny_shape
from tests.support.reference import forward, relative_error
from tests.support.retrieval import EMBEDDING, RERANKER, golden


@pytest.mark.parametrize("name", ["model.safetensors", "model.pth"])
@pytest.mark.parametrize("source", [EMBEDDING, RERANKER])
def test_a_converted_file_has_the_same_model(source: Path, name: str, tmp_path: Path) -> None:
    with open_model(source) as model:
        convert_model(model, tmp_path / name)
        with open_model(tmp_path / name) as written:
            assert written.fingerprint == model.fingerprint
            assert written.names == model.names


def test_a_converted_file_has_the_published_names(tmp_path: Path) -> None:
    for source, begins in ((EMBEDDING, ("rwkv.", "head.")), (RERANKER, ("reranker.", "reranker_layer_idx"))):
        with open_model(source) as model:
            convert_model(model, tmp_path / "model.safetensors", force=True)
        assert all(name.startswith(begins) for name in load_file(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["model.safetensors", "model.pth"])
@pytest.mark.parametrize("source", [EMBEDDING, RERANKER])
def test_a_converted_file_has_the_axes_of_published_ones(source: Path, name: str, tmp_path: Path) -> None:
    """The package loads a reranker only if each tensor has the axes that it expects."""
    with open_model(source) as model:
        convert_model(model, tmp_path / name)
    with closing(open_source(source)) as published, closing(open_source(tmp_path / name)) as written:
        shapes = {each: info.shape for each, info in published.tensors.items()}
        assert shapes.pop("rwkv.head.weight", (2, 2)) == (2, 2)
        assert {each: info.shape for each, info in written.tensors.items()} == shapes


def test_a_quantised_file_gives_nearly_the_same_features(tmp_path: Path) -> None:
    tokens = golden("tokens.1").tolist()
    with open_model(EMBEDDING) as model:
        convert_model(model, tmp_path / "int8.safetensors", "int8")
        expected, _ = forward(model, tokens)
    with open_model(tmp_path / "int8.safetensors") as quantised:
        assert quantised.block_type("blocks.1.ffn.key.weight") == "int8"
        assert quantised.block_type("head.sts_head.fc1.weight") == "int8"
        features, _ = forward(quantised, tokens)
    assert 0 < relative_error(features, expected) < 0.1  # measured: 0.04


@pytest.mark.parametrize("name", ["model.gguf", "model.st", "model.prefab", "folder"])
def test_other_formats_can_not_hold_it(name: str, tmp_path: Path) -> None:
    with open_model(EMBEDDING) as model, pytest.raises(ModelError, match=r"v7-embedding"):
        convert_model(model, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_of_pictures_and_the_head_of_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    path = save_safetensors(random_model(embedding_shape(tiny_shape()), 1), tmp_path / "model.safetensors")
    more = ("rwkv.head.weight", "vit.encoder.layers.0.weight", "proj.gate.weight")
    surplus = {name: np.zeros((3, 3), np.float32) for name in more}
    save_file({**load_file(path), **surplus}, tmp_path / "vit.safetensors")
    with open_model(path) as plain, open_model(tmp_path / "vit.safetensors") as with_pictures:
        assert with_pictures.names == plain.names
        assert with_pictures.fingerprint == plain.fingerprint


@pytest.mark.parametrize("kind", ["embedding", "reranker"])
def test_wrong_prefixes_and_missing_parts_are_named(kind: str, tmp_path: Path) -> None:
    shape = embedding_shape(tiny_shape()) if kind == "embedding" else reranker_shape(tiny_shape())
    path = save_safetensors(random_model(shape, 1), tmp_path / "model.safetensors")
    tensors = load_file(path)
    without_heads = {name: values for name, values in tensors.items() if "head" not in name}
    missing = "head.retr_head.fc1.weight" if kind == "embedding" else "reranker.head.0.weight; reranker.head.0.bias"
    assert f"missing: {missing}" in refusal(tmp_path, without_heads)
    heads_alone = {re.sub(r"^rwkv\.", "model.", name): values for name, values in tensors.items()}
    if kind == "embedding":
        assert "missing: rwkv.emb.weight; rwkv.blocks.0.ln0.weight" in refusal(tmp_path, heads_alone)
    other = {re.sub(r"^(rwkv|reranker|head)\.", "model.", name): values for name, values in tensors.items()}
    assert "no RWKV version has these tensors" in refusal(tmp_path, other)


def test_a_reranker_has_one_token_and_an_entry_for_each_layer(tmp_path: Path) -> None:
    path = save_safetensors(random_model(reranker_shape(tiny_shape()), 1), tmp_path / "model.safetensors")
    tensors = load_file(path)
    layers = {**tensors, "reranker_layer_idx": np.arange(3)}
    assert "reranker_layer_idx has 3 numbers; expected 2" in refusal(tmp_path, layers)
    wide = {**tensors, "reranker.emb.weight": np.zeros((2, 64), np.float16)}
    assert "2 tokens and 1 scores; expected one token and one score" in refusal(tmp_path, wide)
    renamed = {name.replace("reranker.emb", "reranker.token"): values for name, values in tensors.items()}
    save_file(renamed, tmp_path / "token.safetensors")
    with open_model(path) as model, open_model(tmp_path / "token.safetensors") as same:
        assert same.fingerprint == model.fingerprint


def refusal(folder: Path, tensors: dict[str, np.ndarray]) -> str:
    save_file(tensors, folder / "bad.safetensors")
    with pytest.raises(ModelError) as error:
        open_model(folder / "bad.safetensors")
    return str(error.value)
