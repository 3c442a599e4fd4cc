"""`LLM` with a random QRWKV6 and ARWKV, as a GGUF file and as a Hugging Face folder: both are one model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rnn_engine import LLM, SamplingParams, Tool, Tuner
from rnn_engine.errors import ModelError
from rnn_engine.types import ModelShape
from tests.support.gguf import bpe_vocabulary, save_gguf
from tests.support.hf import save_hf
from tests.support.models import random_model
from tests.support.older_models import tiny_v6_qwen2, tiny_v7_qwen2

SHAPES = (tiny_v6_qwen2(layers=1, vocab=300), tiny_v7_qwen2(vocab=300))
CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} <tool_call></tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, stop_token_ids=())
QUESTION = "Is this one of the texts that were kept?"


def save_file(shape: ModelShape, folder: Path) -> Path:
    more = bpe_vocabulary(shape.vocab_size) | {"tokenizer.chat_template": CHATML}
    return save_gguf(random_model(shape, seed=9), folder / "model.gguf", more=more)


def save_folder(shape: ModelShape, folder: Path) -> Path:
    """Write the same model as `save_file` to a folder, with the tokenizer and template as a library writes them."""
    path = save_hf(random_model(shape, seed=9), folder / "folder", "qwen2")
    names = bpe_vocabulary(shape.vocab_size)["tokenizer.ggml.tokens"]
    assert isinstance(names, list)
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(names[-3:])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.version, scope="module")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM]]:
    folder = tmp_path_factory.mktemp("models")
    with (
        LLM(save_file(request.param, folder), device="cpu") as one,
        LLM(save_folder(request.param, folder), device="cpu") as other,
    ):
        yield one, other


def test_chats_states_and_the_cache(both: tuple[LLM, LLM]) -> None:
    answers = []
    for llm in both:
        done = llm.chat(QUESTION, PARAMS, keep_state=True)
        again = llm.chat(QUESTION, PARAMS)
        assert (done.cached_tokens, again.cached_tokens) == (0, again.prompt_tokens)
        assert done.tokens == again.tokens
        assert done.state is not None
        assert set(done.state) == {"att_shift", "wkv"}
        answers.append((done.text, done.tokens, llm.generate("ab", PARAMS, state=done.state).tokens))
    assert answers[0] == answers[1]


def test_embeddings_and_choices(both: tuple[LLM, LLM]) -> None:
    vectors = [llm.embed(["ab", "a"]) for llm in both]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    ranks = [llm.rank(QUESTION, ["yes", "no", "ab"]) for llm in both]
    assert [each.text for each in ranks[0]] == [each.text for each in ranks[1]]


def test_tools_are_called_as_qwen2_calls_them(both: tuple[LLM, LLM]) -> None:
    tool = Tool("look", "Look.", {"type": "object", "properties": {}, "additionalProperties": False})
    calls = [
        llm.chat(QUESTION, SamplingParams(max_tokens=60, seed=1), tools=[tool], tool_choice="required") for llm in both
    ]
    for done in calls:
        assert [(call.name, json.loads(call.arguments)) for call in done.tool_calls] == [("look", {})]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.version)
def test_initial_states_can_not_be_tuned(shape: ModelShape, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": "a", "completion": f"b{number}"}) + "\n" for number in range(4)))
    with pytest.raises(
        ModelError, match=r"^initial states of (QRWKV6|ARWKV) can't be trained; expected RWKV-5, 6 or 7$"
    ):
        Tuner(data, save_folder(shape, tmp_path), device="cpu")
