"""Answers of a real engine follow random JSON schemas: each is valid, or cut off by the token limit."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from jsonschema import Draft202012Validator

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.forward import GpuRunner
from rnn_engine.grammar import json_grammar
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.runner import RunnerSize, load_runner
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from rnn_engine.tokenizer.world import WORLD_PADDED_SIZE, WorldTokenizer
from tests.support.engines import listen
from tests.support.models import random_model, tiny_shape
from tests.support.random_schemas import random_schema

DEVICE = "0"
SLOTS = 8


async def load(model: str) -> Engine:
    """Return an engine with the demo model, or with random weights and World's vocabulary."""
    if model == "demo":
        return await Engine.load(model_path(), LoadSettings(DEVICE))
    runner = load_runner(random_model(tiny_shape(vocab=WORLD_PADDED_SIZE), seed=1), DEVICE, RunnerSize(SLOTS))
    return Engine(assemble(runner, WorldTokenizer(), model="random", device=DEVICE, weights="f16"))


async def answer(engine: Engine, seed: int, most: int, counts: Counter[str]) -> None:
    """Generate an answer of at most `most` tokens under a random schema, check it, and count what it was."""
    schema = random_schema(seed)
    prompt = engine.tokenize(f"User: {json.dumps(schema)}\n\nAssistant:")
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=seed)
    request = GenerateRequest(prompt, max_tokens=most, sampling=sampling, grammar=json_grammar(schema))
    heard = await listen(engine, request)
    reason = heard.finished.reason
    assert reason in ("stop", "length")
    if reason == "stop":
        Draft202012Validator(schema).validate(json.loads(heard.text))
    counts[reason] += 1
    counts["pieces"] += sum(isinstance(event, TextDelta) for event in heard.events) > 1


@pytest.mark.parametrize("model", ["demo", "random"])
async def test_streamed_answers_are_valid_or_cut(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuRunner, "warm_up", lambda *_: None)  # it would compile kernels that the test does not use
    counts: Counter[str] = Counter()
    async with await load(model) as engine, asyncio.TaskGroup() as group:
        for seed in range(0, 300, 40):
            group.create_task(answer(engine, seed, 200, counts))
    assert counts["stop"] + counts["length"] == 8
    assert counts["stop"] >= 5
    assert counts["pieces"] >= 2
