"""Runs with embeddings of their own, on a GPU and on the CPU: tokens' embeddings give the same as the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rnn_engine.errors import InvalidRequestError
from rnn_engine.requests import GenerateRequest, StateMix
from rnn_engine.types import F32, ModelShape, Runner, TokenRun, run_step
from tests.support.cpu import make_cpu_runner
from tests.support.gpu import make_gpu_runner
from tests.support.models import TensorModel, deep_embedded, random_model, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v6

TOKENS = [5, 0, 17, 95, 17, 3, 8, 9, 33, 60, 61]


@pytest.fixture(scope="module", params=[tiny_shape(), tiny_v6(), tiny_v4()], ids=lambda shape: shape.version)
def model(request: pytest.FixtureRequest) -> TensorModel:
    shape: ModelShape = request.param
    return random_model(shape, seed=5)


@pytest.fixture(scope="module", params=[make_gpu_runner, make_cpu_runner], ids=["gpu", "cpu"])
def runner(request: pytest.FixtureRequest, model: TensorModel) -> Iterator[Runner]:
    made: Runner = request.param(model, num_slots=3, max_tokens=24, max_rows=4, num_candidates=8)
    yield made
    made.close()


def rows_of(model: TensorModel, tokens: list[int]) -> F32:
    return model.tensor("emb.weight")[tokens].astype(np.float32)


def logits_after(runner: Runner, *runs: TokenRun) -> list[F32]:
    """Return the logits of the last row of each run. The runs start from the initial state."""
    for run in runs:
        runner.write_state(run.slot, None)
    readout = run_step(runner, list(runs))
    return [readout.full_row(row).copy() for row in range(len(runs))]


def test_the_embeddings_of_tokens_stand_for_these(runner: Runner, model: TensorModel) -> None:
    [expected] = logits_after(runner, TokenRun(0, TOKENS, rows=1))
    state = runner.read_state(0)
    placeholders = [0] * len(TOKENS)
    [found] = logits_after(runner, TokenRun(0, placeholders, rows=1, embeddings=rows_of(model, TOKENS)))
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    for name, values in runner.read_state(0).items():
        assert np.allclose(values, state[name], rtol=1e-4, atol=1e-5), name


def test_runs_with_tokens_and_with_embeddings_share_a_step(runner: Runner, model: TensorModel) -> None:
    parts = [TOKENS[:3], TOKENS[3:8], TOKENS[8:]]
    alone = [logits_after(runner, TokenRun(0, part, rows=1))[0] for part in parts]
    together = logits_after(
        runner,
        TokenRun(2, [0] * 3, rows=1, embeddings=rows_of(model, parts[0])),
        TokenRun(0, parts[1], rows=1),
        TokenRun(1, [0] * 3, rows=1, embeddings=rows_of(model, parts[2])),
    )
    for found, expected in zip(together, alone, strict=True):
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_what_no_token_has_changes_the_answer_and_nothing_is_left_of_it(runner: Runner, model: TensorModel) -> None:
    [plain] = logits_after(runner, TokenRun(0, TOKENS[:3], rows=1))
    other = np.random.default_rng(1).standard_normal((3, model.shape.width), np.float32)
    [changed] = logits_after(runner, TokenRun(0, [0] * 3, rows=1, embeddings=other))
    assert not np.allclose(plain, changed, atol=1e-3)
    [again] = logits_after(runner, TokenRun(0, TOKENS[:3], rows=1))
    assert np.array_equal(plain, again)


def test_embeddings_of_another_size_are_refused(runner: Runner, model: TensorModel) -> None:
    for shape in ((2, model.shape.width), (3, model.shape.width + 1)):
        with pytest.raises(InvalidRequestError, match="a vector for each token"):
            runner.submit([TokenRun(0, [0] * 3, embeddings=np.zeros(shape, np.float32))])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"score_from": 0}, "null, since states are mixed or tokens are scored"),
        ({"mix": StateMix(1.0, [])}, "null, since states are mixed or tokens are scored"),
        ({"embeddings": np.full((1, 64), np.inf, np.float32)}, "finite numbers"),
    ],
)
def test_requests_that_embeddings_do_not_go_with(fields: dict[str, Any], words: str) -> None:
    given = {"prompt": [0], "embeddings": np.zeros((1, 64), np.float32), **fields}
    with pytest.raises(InvalidRequestError, match=words):
        GenerateRequest(**given).check(tiny_shape(), 8, 2)


def test_a_version_with_vectors_for_each_token_in_every_layer_takes_none() -> None:
    request = GenerateRequest([0], embeddings=np.zeros((1, 64), np.float32))
    request.check(tiny_shape(), 8, 2)
    with pytest.raises(InvalidRequestError, match="v7-deepembed has vectors for each token in every layer"):
        request.check(deep_embedded(tiny_shape()), 8, 2)
