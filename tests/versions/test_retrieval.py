"""Models for retrieval, compared with vectors and scores that their own package has computed with torch, in f32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rnn_engine.loading.runner import RunnerSize, load_runner, open_model
from rnn_engine.model.model_file import ModelFile
from rnn_engine.types import F32, Runner, State, TokenRun, run_step
from rnn_engine.versions.v7_retrieval import TASKS, ScoreHead, ShapeV7Embedding, ShapeV7Reranker, TaskHeads
from tests.support.reference import relative_error
from tests.support.retrieval import EMBEDDING, NUM_TEXTS, RERANKER, golden

BOUNDS = {"cpu f32": 1e-5, "gpu f32": 1e-5, "gpu int8": 0.1}  # the files are f16, which loses nothing


def load(path: Path, setting: str) -> tuple[ModelFile, Runner]:
    device, weights = setting.split()
    model = open_model(path)
    return model, load_runner(model, "cpu" if device == "cpu" else "auto", RunnerSize(4), weights=weights)


def run_features(runner: Runner, tokens: Sequence[int], end: int) -> tuple[F32, State]:
    """Return the rows [N, D] of the tokens `end` of a text, and the state after it."""
    rows = []
    start = 0
    runner.write_state(0, None)
    for position in [place for place, token in enumerate(tokens, 1) if token == end]:
        readout = run_step(runner, [TokenRun(0, tokens[start:position], rows=1)])
        rows.append(readout.full_row(0))
        start = position
    return np.stack(rows), runner.read_state(0)


def score(runner: Runner, head: ScoreHead, wkv: F32) -> float:
    """Return the log-odds that a reranker gives after the matrices `wkv` [L, H, N, N] of its own layers."""
    runner.write_state(1, {**runner.shape.initial_state(), "wkv": wkv})
    readout = run_step(runner, [TokenRun(1, [0], rows=1)])
    return float(head.apply(readout.full_row(0)[np.newaxis])[0])


@pytest.mark.parametrize("setting", BOUNDS)
def test_vectors_and_scores_are_those_of_the_package(setting: str) -> None:
    model, runner = load(EMBEDDING, setting)
    reranker_model, reranker = load(RERANKER, setting)
    assert isinstance(model.shape, ShapeV7Embedding)
    assert isinstance(reranker_model.shape, ShapeV7Reranker)
    heads, head, layers = TaskHeads(model), ScoreHead(reranker_model), reranker_model.tensor("reranker_layer_idx")
    errors = []
    for number in range(NUM_TEXTS):
        tokens = golden(f"tokens.{number}").tolist()
        features, state = run_features(runner, tokens, model.shape.vocab_size - 1)
        for task in TASKS:
            found = heads.apply(features.mean(axis=0, keepdims=True), task)[0]
            errors.append(relative_error(found, golden(f"{task}.{number}")))
        expected = float(golden(f"score.{number}")[0])
        errors.append(abs(score(reranker, head, state["wkv"][layers]) - expected))
        if number == 1:
            errors.append(relative_error(state["wkv"], golden("wkv.1")))
    for opened in (runner, reranker, model, reranker_model):
        opened.close()
    assert max(errors) < BOUNDS[setting]  # measured: 3.6e-6 at most in floats, 0.045 in int8


def test_a_transposed_state_scores_otherwise() -> None:
    model, reranker = load(RERANKER, "cpu f32")
    head, wkv = ScoreHead(model), golden("wkv.1")[model.tensor("reranker_layer_idx")]
    expected = float(golden("score.1")[0])
    assert abs(score(reranker, head, wkv) - expected) < 1e-5
    assert abs(score(reranker, head, np.ascontiguousarray(wkv.swapaxes(-1, -2))) - expected) > 1e-2
    model.close()
