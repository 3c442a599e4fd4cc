"""A GGUF file that is written has all that its source has: the model, its tokenizer and its chat template."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.chat_template import ChatMessage, ChatTemplate, Conversation, Role
from rnn_engine.convert.convert import convert_model
from rnn_engine.demo import model_path
from rnn_engine.loading.chat_template import load_chat_template
from rnn_engine.loading.runner import open_model
from rnn_engine.tensor_files.formats import gguf_metadata
from rnn_engine.tokenizer import Tokenizer, load_tokenizer
from rnn_engine.types import ModelShape
from tests.support.gguf import bpe_vocabulary, save_gguf
from tests.support.hf import save_hf
from tests.support.models import random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v6, tiny_v6_qwen2, tiny_v7_qwen2
from tests.support.reference import forward
from tests.tokenizer.test_gguf import PIECES, TEXTS, qwen2_library

TOKENS = [3, 1, 4, 15, 9, 26]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}<|im_start|>assistant"
)
CHAT = Conversation([ChatMessage(Role.USER, "naïve  café?")])


def convert(source: Path, target: Path, weights: str = "stored") -> Path:
    with open_model(source) as model:
        convert_model(model, target, weights)
    return target


def parts(path: Path) -> tuple[Tokenizer, ChatTemplate]:
    with open_model(path) as model:
        return load_tokenizer("auto", path, model.shape.vocab_size), load_chat_template("auto", path)


def check_same(source: Path, made: Path, texts: list[str]) -> None:
    """Check that two models have the same tokens for every text, and the same prompt for a chat."""
    (tokenizer, template), (other, its_template) = parts(source), parts(made)
    for text in texts:
        assert other.encode(text) == tokenizer.encode(text)
    for token in range(tokenizer.size):
        assert other.decode_bytes(token) == tokenizer.decode_bytes(token)
    assert dict(other.special_tokens) == dict(tokenizer.special_tokens)
    assert its_template.render(CHAT, 1000) == template.render(CHAT, 1000)
    assert its_template.tool_format == template.tool_format


SHAPES = {
    "v6": tiny_v6_qwen2(vocab=304),
    "v7": tiny_v7_qwen2(vocab=304, head_size=64, width=128),
    "without-gate": tiny_v7_qwen2(vocab=304, gate_rank=0),
}


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_folder_of_a_qwen2_body_becomes_one_whole_file(shape: ModelShape, optional: bool, tmp_path: Path) -> None:
    folder = save_hf(random_model(shape, 7, bits=8, optional=optional), tmp_path / "Own-7B", "qwen2", num_shards=2)
    qwen2_library().save(str(folder / "tokenizer.json"))
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    first = convert(folder, tmp_path / "first.gguf")
    second = convert(first, tmp_path / "second.gguf")
    with open_model(folder) as model:
        logits, _ = forward(model, TOKENS)
    for path in (first, second):
        check_same(folder, path, TEXTS)
        with open_model(path) as model:
            assert np.array_equal(forward(model, TOKENS)[0], logits)
        metadata = gguf_metadata(path)
        assert metadata["general.name"] == "Own-7B"
        assert metadata["tokenizer.ggml.pre"] == "qwen2"
        assert len(metadata["tokenizer.ggml.tokens"]) == shape.vocab_size
        ends = qwen2_library()
        assert metadata["tokenizer.ggml.eos_token_id"] == ends.token_to_id("<|im_end|>")
        assert metadata["tokenizer.ggml.padding_token_id"] == ends.token_to_id("<|endoftext|>")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_the_epsilon_of_rms_norms_is_written(epsilon: float, tmp_path: Path) -> None:
    key = "rwkv6qwen2.attention.layer_norm_rms_epsilon"
    source = save_gguf(random_model(tiny_v6_qwen2(), 4), tmp_path / "a.gguf", more={key: epsilon})
    with open_model(source) as model, open_model(convert(source, tmp_path / "b.gguf")) as made:
        assert made.shape == model.shape
        assert made.fingerprint == model.fingerprint


def test_a_gguf_file_keeps_its_own_metadata(tmp_path: Path) -> None:
    """Also those that only llama.cpp reads, and those of a vocabulary smaller than the model's."""
    more = bpe_vocabulary(90) | {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.chat_template": CHATML}
    more |= {"general.author": "somebody", "general.file_type": 7, "tokenizer.ggml.scores": [0.5, -1.0]}
    source = save_gguf(random_model(tiny_v7_qwen2(), 4), tmp_path / "a.gguf", more=more)
    metadata = gguf_metadata(convert(source, tmp_path / "b.gguf"))
    assert "general.file_type" not in metadata
    assert metadata["tokenizer.ggml.tokens"][-7:] == [b"<|im_end|>", *(b"[PAD%d]" % token for token in range(90, 96))]
    assert metadata["tokenizer.ggml.token_type"].tolist()[-7:] == [3, 5, 5, 5, 5, 5, 5]
    for key in ("pre", "merges", "eos_token_id"):
        assert metadata[f"tokenizer.ggml.{key}"] == gguf_metadata(source)[f"tokenizer.ggml.{key}"]
    assert metadata["tokenizer.ggml.scores"].tolist() == [0.5, -1.0]
    assert metadata["general.author"] == "somebody"
    assert metadata["tokenizer.chat_template"] == CHATML


def test_a_vocabulary_of_byte_strings_in_a_folder(tmp_path: Path) -> None:
    source = save_safetensors(random_model(tiny_v6(), 4), tmp_path / "model.safetensors", "f16")
    lines = [f"{token} {piece!r} {len(piece)}" for token, piece in enumerate(PIECES) if piece]
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "made").mkdir()
    made = convert(source, tmp_path / "made" / "out.gguf")
    tokenizer, _ = parts(source)
    other, _ = parts(made)
    assert other.encode("abaé\\'\n\t\r") == tokenizer.encode("abaé\\'\n\t\r") == [2, 1, 9, 5, 7]
    assert len(gguf_metadata(made)["tokenizer.ggml.tokens"]) == tiny_v6().vocab_size


def test_the_vocabulary_of_world_and_its_template(tmp_path: Path) -> None:
    shape = tiny_shape(layers=1, width=16, vocab=65536)
    source = save_safetensors(random_model(shape, 1), tmp_path / "rwkv7-g1a-0.1b.safetensors", "f16")
    made = convert(source, tmp_path / "out.gguf", "f16")
    check_same(source, made, TEXTS)
    metadata = gguf_metadata(made)
    assert (metadata["tokenizer.ggml.model"], metadata["tokenizer.chat_template"]) == ("rwkv", "rwkv-world")
    assert load_chat_template("auto", made) == load_chat_template("auto", source)


def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_stored_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        made = convert(model_path(), tmp_path / "out.gguf")
    assert "llama.cpp can't read the tokenizer tokenizer.json" in caplog.text
    check_same(model_path(), made, TEXTS)
    assert load_chat_template("auto", made) == load_chat_template("auto", model_path())
