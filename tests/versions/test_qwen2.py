"""QRWKV6 and ARWKV, whose body is that of a Qwen2, compared with llama.cpp's log-probabilities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import DTypeLike

from rnn_engine.chat_template import ChatMessage, Conversation, Role
from rnn_engine.chat_template.tools import ToolFormats
from rnn_engine.engine import Engine
from rnn_engine.errors import ModelError
from rnn_engine.grammar import Grammar
from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.model import ModelFile
from rnn_engine.operations.chat_prompt import make_chat_prompt
from rnn_engine.reference import Array
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, TextDelta
from rnn_engine.types import F32, ModelShape
from tests.support.cpu import make_cpu_runner
from tests.support.gguf import bpe_vocabulary, llama_cpp_tensors, metadata, save_gguf, write_gguf
from tests.support.golden import FOLDER
from tests.support.golden_contract import run_in_chunks
from tests.support.gpu import make_gpu_runner
from tests.support.kept_blocks import random_bytes
from tests.support.models import TensorModel, random_model
from tests.support.older_models import tiny_v6_qwen2, tiny_v7_qwen2
from tests.support.reference import forward, log_softmax, relative_error
from tools.golden.llama_cpp import CASES

ARCHITECTURES = {"v6-qwen2": "rwkv6qwen2", "v7-qwen2": "arwkv7"}
TOLERANCE = 1e-5
"""The greatest error of a log-probability, in parts of the greatest. llama.cpp computes in f32, too."""


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ModelFile, list[int], F32]]:
    """A model in a GGUF file, tokens [T], and llama.cpp's log-probabilities [T, V]."""
    with np.load(FOLDER / "llama_cpp" / f"{request.param}.npz", allow_pickle=False) as arrays:
        tensors = {name.removeprefix("tensor."): arrays[name] for name in arrays.files if name.startswith("tensor.")}
        shape, _ = CASES[request.param]
        tokens, logprobs = arrays["tokens"].tolist(), arrays["logprobs"]
    with open_model(save_gguf(TensorModel(shape, tensors), tmp_path / "model.gguf")) as model:
        yield model, tokens, logprobs


def check(logits: Array, logprobs: F32) -> None:
    assert relative_error(log_softmax(logits.astype(np.float64)), logprobs) < TOLERANCE


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_probabilities_are_those_of_llama_cpp(golden: tuple[ModelFile, list[int], F32], dtype: DTypeLike) -> None:
    model, tokens, logprobs = golden
    logits, _ = forward(model, tokens, dtype=dtype)
    check(logits, logprobs)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_so_they_are_on_devices_in_chunks_of_any_size(golden: tuple[ModelFile, list[int], F32], device: str) -> None:
    model, tokens, logprobs = golden
    make_runner = make_cpu_runner if device == "cpu" else make_gpu_runner
    runner = make_runner(model, num_slots=2, max_tokens=64, max_rows=64, num_candidates=8)
    for size in (1, 7, 64):
        runner.write_state(1, None)
        check(run_in_chunks(runner, tokens, (size,)), logprobs)
    runner.close()


@pytest.mark.parametrize("shape", [tiny_v6_qwen2(), tiny_v7_qwen2()], ids=lambda shape: shape.version)
def test_the_epsilon_of_the_norms_comes_from_the_file(shape: ModelShape, tmp_path: Path) -> None:
    key = f"{ARCHITECTURES[shape.version]}.attention.layer_norm_rms_epsilon"
    model = random_model(shape, seed=4)
    with open_model(save_gguf(model, tmp_path / "a.gguf")) as usual:
        assert usual.shape == shape
        assert usual.shape.settings == ""
        known = usual.fingerprint
    with open_model(save_gguf(model, tmp_path / "b.gguf", more={key: 1e-5})) as other:
        assert other.shape.settings == "RMS norm epsilon 1e-05"
        assert other.fingerprint != known
        assert relative_error(*(forward(each, [1, 2])[0] for each in (other, model))) > 1e-4
    for value in (0.0, -1.0, 2):
        path = save_gguf(model, tmp_path / "c.gguf", more={key: value})
        with pytest.raises(ModelError, match=rf"{key} is {value}.*; expected a number above 0"):
            open_model(path)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (("blocks.1.att.key.bias",), "1 tensor missing: blocks.1.att.key.bias"),
        (("blocks.0.ffn.up.weight",), "1 tensor missing: blk.0.ffn_up.weight"),
    ],
)
def test_a_tensor_that_only_some_layers_have_is_missing(lost: tuple[str, ...], message: str, tmp_path: Path) -> None:
    model = random_model(tiny_v6_qwen2(), seed=4)
    tensors = {name: values for name, values in model.tensors.items() if name not in lost}
    with pytest.raises(ModelError, match=message):
        open_model(save_gguf(TensorModel(model.shape, tensors), tmp_path / "a.gguf"))


def test_heads_of_keys_must_divide_the_heads(tmp_path: Path) -> None:
    model = random_model(tiny_v6_qwen2(kv_heads=4), seed=4)
    tensors = {
        name: values[:48] if ".att.key." in name or ".att.value." in name else values
        for name, values in model.tensors.items()
    }
    with pytest.raises(ModelError, match=r"key.weight has 48 rows; expected a number of heads of size 16 that divides"):
        open_model(save_gguf(TensorModel(model.shape, tensors), tmp_path / "a.gguf"))


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <tool_call> tools #}"
)


async def test_chats_are_in_chatml_and_end_with_its_token(tmp_path: Path) -> None:
    """Token 0 is plain text in Qwen2's vocabulary, so it ends no text."""
    shape = tiny_v7_qwen2(vocab=300)
    more = bpe_vocabulary(300) | {"tokenizer.chat_template": CHATML}
    path = save_gguf(random_model(shape, seed=9), tmp_path / "model.gguf", more=more)
    async with await Engine.load(path, LoadSettings("cpu"), num_slots=1) as engine:
        assert engine.info.end_of_text == 297
        assert engine.info.chat_template.tool_format == ToolFormats.TAGGED.value
        chat = Conversation([ChatMessage(Role.USER, "a!")])
        prompt = make_chat_prompt(engine, engine.info.chat_template, chat, 1000)
        assert prompt.stop_tokens == (299,)
        assert prompt.tokens[0] == 298
        for bias, reason in (({0: 100.0}, "length"), ({297: 100.0}, "stop"), ({299: 100.0}, "stop")):
            request = GenerateRequest(
                prompt.tokens,
                max_tokens=3,
                stop_tokens=(0, *prompt.stop_tokens),
                sampling=SamplingParams(temperature=0.0, logit_bias=dict(bias)),
            )
            *_, finished = [event async for event in engine.generate(request)]
            assert isinstance(finished, Finished)
            assert finished.reason == reason


@pytest.mark.parametrize(("thinking", "thought"), [(None, True), (True, True), (False, None)])
async def test_answers_begin_in_thoughts_where_the_template_of_the_file_opens_them(
    tmp_path: Path, thinking: bool | None, thought: bool | None
) -> None:
    """As the template of QwQ, and so of its QRWKV6, does."""
    opens = "assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
    more = bpe_vocabulary(300) | {"tokenizer.chat_template": CHATML.replace("assistant\n", opens)}
    path = save_gguf(random_model(tiny_v6_qwen2(vocab=300), seed=9), tmp_path / "model.gguf", more=more)
    async with await Engine.load(path, LoadSettings("cpu"), num_slots=1) as engine:
        chat = Conversation([ChatMessage(Role.USER, "a <think>")], thinking=thinking)
        prompt = make_chat_prompt(engine, engine.info.chat_template, chat, 1000)
        assert prompt.thought is thought
        assert prompt.stop_tokens == (299,)


async def test_a_grammar_ends_with_an_end_of_the_text_and_not_with_token_0(tmp_path: Path) -> None:
    shape = tiny_v7_qwen2(vocab=300)
    path = save_gguf(random_model(shape, seed=9), tmp_path / "model.gguf", more=bpe_vocabulary(300))
    async with await Engine.load(path, LoadSettings("cpu"), num_slots=1) as engine:
        request = GenerateRequest(
            engine.tokenize("a"),
            max_tokens=5,
            grammar=Grammar("regex", "(xy|xyz)"),
            sampling=SamplingParams(temperature=0.0, logit_bias={0: 100.0, 297: 90.0}),
        )
        events = [event async for event in engine.generate(request)]
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "xy"


MATRIX = re.compile(r"(.*time_mix_(key|value|receptance|gate|output)|.*ffn_(gate|up|down)|token_embd|output)\.weight")


@pytest.mark.parametrize(
    "shape",
    [tiny_v6_qwen2(layers=1, width=256, ffn=256), tiny_v7_qwen2(width=256, ffn=256)],
    ids=lambda shape: shape.version,
)
def test_matrices_in_k_quants_stay_in_their_blocks(shape: ModelShape, tmp_path: Path) -> None:
    tensors = llama_cpp_tensors(random_model(shape, seed=6))
    encoded: dict[str, GGMLQuantizationType] = {}
    for name in filter(MATRIX.fullmatch, list(tensors)):
        is_fine = "ffn_down" in name or name in ("output.weight", "blk.1.ffn_up.weight")  # its gate is in Q4_K
        kind = "Q6_K" if is_fine else "Q4_K"
        tensors[name] = random_bytes(kind, *tensors[name].shape, seed=len(encoded))
        encoded[name] = GGMLQuantizationType[kind]
    architecture, tokens = ARCHITECTURES[shape.version], [3, 1, 4, 1, 5]
    path = write_gguf(tmp_path / "a.gguf", architecture, metadata(shape), tensors, encoded=encoded)
    with open_model(path) as model:
        assert model.block_type("blocks.0.att.key.weight") == "Q4_K"
        expected, _ = forward(model, tokens, dtype=np.float64)
        runner = load_runner(model, size=RunnerSize(2, max_rows=8), weights="stored")
    found = run_in_chunks(runner, tokens, (2,))
    runner.close()
    assert relative_error(found, expected) < 1e-4
