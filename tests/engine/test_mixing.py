"""A mix of states of a model: tokens and probabilities are those that numpy computes from the reference's rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rnn_engine.requests import GenerateRequest, MixedState, SamplingParams, StateMix, TextDelta, TokenInfo
from rnn_engine.sampling.params import MixKind
from rnn_engine.scheduler import Scheduler
from rnn_engine.types import F32, InitialState, Runner
from tests.support.cpu import make_cpu_runner
from tests.support.gpu import make_gpu_runner
from tests.support.mixed_rows import mixed_logprobs
from tests.support.models import random_model, tiny_shape
from tests.support.reference import forward

MODEL = random_model(tiny_shape(), seed=31)
PROMPT = [5, 9, 2, 30, 7]
OWN_PROMPT = [11, 3]
BEFORE = [1, 44, 8]  # the tokens that the second state has taken in
BOUND = 2e-5  # of rounding in f32: logits are as large as 16, and the weights' absolute values sum to 2.5


def rows_after(before: list[int], tokens: list[int]) -> F32:
    """Return the reference's logits after `before` and each of `tokens`."""
    logits, _ = forward(MODEL, [*before, *tokens], dtype=np.float64)
    return logits[len(before) :].astype(np.float32)


def drawn(runner: Runner, request: GenerateRequest) -> list[TokenInfo]:
    scheduler = Scheduler(runner, lambda token: bytes([token]))
    scheduler.submit(0, request)
    tokens: list[TokenInfo] = []
    while scheduler.has_work:
        for delivery in scheduler.step():
            assert not isinstance(delivery.outcome, Exception)
            tokens += delivery.outcome.tokens if isinstance(delivery.outcome, TextDelta) else ()
    return tokens


@pytest.mark.parametrize("make_runner", [make_cpu_runner, make_gpu_runner])
@pytest.mark.parametrize(
    ("kind", "weights"), [("log", (1.5, -0.5, 0.5)), ("log", (0.4, 0.4, 0.2)), ("probability", (0.5, 0.3, 0.2))]
)
def test_log_probabilities_are_those_of_a_numpy_mix_of_the_reference(
    make_runner: Callable[..., Runner], kind: MixKind, weights: tuple[float, ...]
) -> None:
    _, after = forward(MODEL, BEFORE)
    state = InitialState("after", {name: values.astype(np.float32) for name, values in after.items()})
    others = [MixedState(weights[1], state), MixedState(weights[2], prompt=OWN_PROMPT)]
    runner = make_runner(MODEL, num_slots=4, max_tokens=16, max_rows=4, num_candidates=8)
    tokens = drawn(
        runner,
        GenerateRequest(
            PROMPT,
            mix=StateMix(weights[0], others, kind),
            max_tokens=16,
            stop_tokens=(),
            sampling=SamplingParams(temperature=1.0, top_p=0.9, seed=3),
            logprobs=2,
        ),
    )
    runner.close()
    ids = [info.token for info in tokens]
    starts: list[tuple[list[int], list[int]]] = [([], PROMPT), (BEFORE, PROMPT), ([], OWN_PROMPT)]
    tables = [rows_after(before, [*prompt, *ids[:-1]])[len(prompt) - 1 :] for before, prompt in starts]
    assert len(ids) == 16
    for place, info in enumerate(tokens):
        expected = mixed_logprobs([table[place] for table in tables], weights, kind)
        assert info.logprob == pytest.approx(expected[info.token], abs=BOUND)
        assert [value for _, value in info.top] == pytest.approx(np.sort(expected)[:-3:-1], abs=BOUND)
