"""The interface of the package `rwkv`: results against its golden files, and its quirks."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from rnn_engine.compat.rwkv import PIPELINE, PIPELINE_ARGS, RWKV, parse_strategy
from rnn_engine.demo import model_path, tokenizer_path
from rnn_engine.errors import InvalidRequestError, TokenizerError
from rnn_engine.types import ModelShape
from tests.support.golden import ILL_CONDITIONED, NAMES, load_golden
from tests.support.models import random_model, save_safetensors, tiny_shape
from tests.support.older_models import QWEN2_SHAPES
from tests.support.reference import forward, relative_error
from tools.golden.oracle import arrange_state

CPU = "cpu fp32"


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_states_are_the_packages(name: str) -> None:
    golden = load_golden(name)
    model = RWKV(str(golden.model_path), CPU, verbose=False)
    tokens = golden.tokens.tolist()
    logits, state = model.forward(tokens, None, full_output=True)
    bound = 4e-5 if name == ILL_CONDITIONED else 1e-5
    assert relative_error(logits.numpy(), golden.logits) < bound
    arranged = arrange_state([array.numpy() for array in state], model.args.n_layer, is_v7=name.startswith("v7"))
    assert arranged.keys() == golden.state.keys()
    for field, expected in golden.state.items():
        assert relative_error(arranged[field], expected) < max(bound, 3e-5)
    last, _ = model.forward(tokens[-1], model.forward(tokens[:-1], None)[1])
    assert relative_error(last.numpy(), golden.logits[-1]) < bound
    model.model.close()


@pytest.mark.parametrize("shape", QWEN2_SHAPES, ids=lambda shape: shape.version)
def test_versions_that_the_package_lacks_have_its_interface(shape: ModelShape, tmp_path: Path) -> None:
    own = random_model(shape, seed=3)
    model = RWKV(str(save_safetensors(own, tmp_path / "model.safetensors", "f32")), CPU)
    tokens = [3, 1, 4, 1, 5]
    logits, state = model.forward(tokens[3:], model.forward(tokens[:3], None)[1], full_output=True)
    assert relative_error(logits.numpy(), forward(own, tokens)[0][3:]) < 1e-5
    assert [array.shape for array in state] == 2 * [(64,), (4, 16, 16)]
    model.model.close()


SIGNATURES = {
    RWKV: "model, strategy, verbose=True, convert_and_save_and_exit=None",
    RWKV.forward: "self, tokens, state, full_output=False",
    PIPELINE: "model, WORD_NAME",
    PIPELINE.refine_context: "self, context",
    PIPELINE.encode: "self, x",
    PIPELINE.decode: "self, x",
    PIPELINE.sample_logits: "self, logits, temperature=1.0, top_p=0.85, top_k=0",
    PIPELINE.generate: "self, ctx, token_count=100, args=None, callback=None, state=None",  # None: the defaults
}


@pytest.mark.parametrize(("function", "expected"), SIGNATURES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_signatures_are_the_packages(function: Callable[..., object], expected: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    assert ", ".join(str(each.replace(annotation=each.empty)) for each in parameters) == expected


def test_default_settings_are_the_packages() -> None:
    assert asdict(PIPELINE_ARGS()) == {
        "temperature": 1.0,
        "top_p": 0.85,
        "top_k": 0,
        "alpha_frequency": 0.2,
        "alpha_presence": 0.2,
        "alpha_decay": 0.996,
        "token_ban": [],
        "token_stop": [],
        "chunk_len": 256,
    }


@pytest.fixture(scope="module")
def demo() -> RWKV:
    return RWKV(str(model_path().with_suffix("")) + ".safetensors", CPU)


@pytest.fixture(scope="module")
def pipeline(demo: RWKV) -> PIPELINE:
    return PIPELINE(demo, str(tokenizer_path()))


def test_a_state_is_changed_in_place(demo: RWKV) -> None:
    _, state = demo.forward([5, 6], None)
    kept = copy.deepcopy(state)
    _, after = demo.forward([7], state)
    assert after is state
    assert not np.array_equal(state[0], kept[0])
    again, _ = demo.forward([7], kept)
    assert np.array_equal(demo.forward([5, 6, 7], None)[0].shape, again.shape)
    assert len(demo.generate_zero_state()) == 3 * demo.args.n_layer


def test_logits_have_the_methods_of_tensors_that_scripts_call(demo: RWKV) -> None:
    logits, _ = demo.forward([5, 6], None)
    assert logits.detach().cpu().float().contiguous().numpy() is not None
    copied = logits.clone()
    copied[0] = 1e9
    assert logits[0] != copied[0]


def test_programs_that_imported_torch_get_tensors(demo: RWKV, monkeypatch: pytest.MonkeyPatch) -> None:
    def from_numpy(array: NDArray[np.float32]) -> tuple[str, NDArray[np.float32]]:
        return "tensor", array

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(from_numpy=from_numpy, float32="f32"))
    logits, state = demo.forward([5, 6], None)
    assert {each[0] for each in (logits, *state)} == {"tensor"}
    assert demo.strategy[0].atype == "f32"


# Drawn by the package's `sample_logits` with the same logits and seed.
DRAWS = {
    (1.0, 0.85, 0): [49, 7, 103, 103, 103, 103, 7, 103, 176, 158, 103, 49],
    (0, 0.85, 0): [103] * 12,
    (1.5, 0.9, 10): [49, 7, 103, 135, 103, 103, 7, 103, 199, 158, 135, 49],
    (0.7, 0.3, 0): [103] * 12,
    (1.0, 1.0, 3): [103] * 12,
}


@pytest.mark.parametrize(("settings", "expected"), DRAWS.items(), ids=str)
def test_tokens_are_drawn_as_by_the_package(
    pipeline: PIPELINE, settings: tuple[float, float, int], expected: list[int]
) -> None:
    logits = np.random.default_rng(7).normal(0, 3, 200).astype(np.float32)
    np.random.seed(11)
    assert [pipeline.sample_logits(logits, *settings) for _ in expected] == expected


def test_a_text_is_generated_and_told_in_parts(pipeline: PIPELINE) -> None:
    parts: list[str] = []
    args = PIPELINE_ARGS(temperature=0, alpha_frequency=0, alpha_presence=0, token_stop=[0], chunk_len=3)
    text = pipeline.generate("User: What is the capital of France?\n\nAssistant:", 30, args, parts.append)
    assert "".join(parts) == text
    assert text.startswith(" The capital of France is Paris.")


def test_banned_tokens_are_not_generated(pipeline: PIPELINE) -> None:
    paris = pipeline.encode(" Paris")[0]
    args = PIPELINE_ARGS(temperature=0, token_ban=[paris], token_stop=[0])
    assert "Paris" not in pipeline.generate("User: What is the capital of France?\n\nAssistant:", 30, args)


def test_worlds_tokenizer_gives_one_sign_for_a_text_that_is_not_whole(tmp_path: Path) -> None:
    path = save_safetensors(random_model(tiny_shape(width=16, head_size=8, vocab=65536), 1), tmp_path / "model.st")
    pipeline = PIPELINE(RWKV(str(path), CPU), "rwkv_vocab_v20230424")
    tokens = pipeline.encode("Grüße, 世界 🐦")
    assert pipeline.decode(tokens) == "Grüße, 世界 🐦"
    assert pipeline.tokenizer.decode(pipeline.tokenizer.encode("ab c")) == "ab c"
    assert pipeline.decode([*tokens[:-1], 0]) == "\ufffd"
    assert pipeline.refine_context("  a \n\n　b\r\n ") == "\na\nb"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("cpu fp32", ("cpu", None)),
        ("cpu bf16", ("cpu", None)),
        ("cuda fp16", ("auto", "f16")),
        ("cuda:1 bf16", ("auto", "bf16")),
        ("cuda fp16i8 *10 -> cpu fp32", ("auto", "int8")),
        ("cuda fp16i4 *8+", ("auto", "int4")),
        ("mps fp32", ("auto", "f32")),
    ],
)
def test_strategies_are_mapped(strategy: str, expected: tuple[str, str | None]) -> None:
    assert parse_strategy(strategy) == expected


def test_misuse_is_refused_in_words(demo: RWKV) -> None:
    for strategy in ("gpu fp16", "cuda", "cuda fp16i3", "cuda fp16 -> tpu fp16"):
        with pytest.raises(InvalidRequestError, match=r"strategy: .* such as 'cuda fp16'"):
            parse_strategy(strategy)
    with pytest.raises(InvalidRequestError, match="state: '7 arrays' is not allowed; expected 3 arrays for each"):
        demo.forward([1], demo.generate_zero_state()[:7])
    with pytest.raises(InvalidRequestError, match="rnn-engine convert"):
        RWKV("demo", CPU, convert_and_save_and_exit="out.pth")
    with pytest.raises(TokenizerError, match="cl100k_base is not supported"):
        PIPELINE(demo, "cl100k_base")
