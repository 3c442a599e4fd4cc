"""Embedding models in ONNX: the vectors, the pieces, and refusals of other files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import semantic_text_splitter

from rnn_engine.errors import ModelError
from rnn_engine.operations import onnx_embedder as embedder_module
from rnn_engine.operations.onnx_embedder import load_embedder
from rnn_engine.types import F32
from tests.support.embedders import TABLE, WORDS, save_embedder


def rows(*words: str) -> F32:
    return TABLE[[WORDS.index(word) for word in words]]


def unit(vector: F32) -> F32:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(
    ("options", "of_two", "of_one"),
    [
        ({}, rows("the", "sky").mean(axis=0), rows("sea")[0]),
        ({"first": True}, rows("the")[0], rows("sea")[0]),
        ({"pooled": True}, rows("the", "sky").sum(axis=0), rows("sea", "[PAD]").sum(axis=0)),
    ],
)
def test_vectors_of_texts(tmp_path: Path, options: dict[str, bool], of_two: F32, of_one: F32) -> None:
    embedder = load_embedder(save_embedder(tmp_path / "tiny", **options))
    assert embedder.name == "tiny"
    vectors = embedder.embed(["the sky", "sea"])
    assert np.allclose(vectors, [unit(of_two), unit(of_one)], atol=1e-6)


def test_a_text_is_cut_where_sentences_and_words_end(tmp_path: Path) -> None:
    embedder = load_embedder(save_embedder(tmp_path))
    text = "the sky is blue. the sea is deep."
    assert embedder.split(text, 510) == [text]
    assert embedder.split(text, 5) == ["the sky is blue.", "the sea is deep."]
    assert embedder.split(text, 3)[0] == "the sky is"
    assert embedder.split(" ", 5) == []


@pytest.mark.parametrize("between", [" ", "\n", "\n\n", ""])
def test_a_long_text_is_split_in_parts_that_end_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    lengths: list[int] = []
    splitter = semantic_text_splitter.TextSplitter

    class Splitter:
        def __init__(self, settings: str, capacity: int) -> None:
            self._real = splitter.from_huggingface_tokenizer_str(settings, capacity)

        @classmethod
        def from_huggingface_tokenizer_str(cls, settings: str, capacity: int) -> Self:
            return cls(settings, capacity)

        def chunks(self, text: str) -> list[str]:
            lengths.append(len(text))
            return list(self._real.chunks(text))

    monkeypatch.setattr(semantic_text_splitter, "TextSplitter", Splitter)
    monkeypatch.setattr(embedder_module, "_PART_CHARACTERS", 20)
    words = ["the", "sky", "is", "blue."] * 25
    pieces = load_embedder(save_embedder(tmp_path / "tiny")).split(between.join(words), 5)
    assert max(lengths) <= 20
    assert "".join("".join(pieces).split()) == "".join(words)
    assert not between or {word for piece in pieces for word in piece.split()} == set(words)


def test_only_the_first_tokens_of_a_long_text_count(tmp_path: Path) -> None:
    embedder = load_embedder(save_embedder(tmp_path))
    long, longer = embedder.embed(["the " * 512, "the " * 512 + "sea " * 99])
    assert np.array_equal(long, longer)


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.onnx"])
def test_a_folder_that_lacks_a_part_is_none(tmp_path: Path, missing: str) -> None:
    (save_embedder(tmp_path) / missing).unlink()
    with pytest.raises(ModelError, match=r"is not an embedding model; expected tokenizer\.json and one of"):
        load_embedder(tmp_path)


@pytest.mark.parametrize("damaged", ["tokenizer.json", "model.onnx"])
def test_a_damaged_part_is_told(tmp_path: Path, damaged: str) -> None:
    (save_embedder(tmp_path) / damaged).write_text("{}")
    with pytest.raises(ModelError, match="can't be run"):
        load_embedder(tmp_path)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"rnn-engine\[embeds\]"):
        load_embedder(save_embedder(tmp_path / "tiny"))
