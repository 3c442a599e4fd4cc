"""Random requests to a small model on a GPU, and their answers if the host or the device draws the tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from rnn_engine.forward import SplitRunner
from rnn_engine.loading.placement import cut
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, TextDelta, TokenInfo
from rnn_engine.sampling.params import PENALTY_DECAY
from rnn_engine.scheduler import NO_DRAFTS, DraftSettings, Scheduler
from rnn_engine.types import Runner
from tests.support.gpu import make_gpu_runner
from tests.support.models import random_model, tiny_shape
from tests.support.token_masks import Residues

NUM_SLOTS, NUM_CANDIDATES = 5, 48
SHAPE = tiny_shape()
SHARPNESS = 40.0  # of the head, so that some rows are decided by their candidates and others are not


def make_runner(*, is_split: bool = False) -> Runner:
    """Return a runner of a small model, which may be one with its layers on several devices."""
    model = random_model(SHAPE, seed=51)
    head = model.tensors["head.weight"]
    model = replace(model, tensors={**model.tensors, "head.weight": head * np.float32(SHARPNESS)})
    parts = [part for part, _ in cut(model, "0,1")] if is_split else [model]
    runners = [
        make_gpu_runner(part, num_slots=NUM_SLOTS, max_tokens=32, max_rows=8, num_candidates=NUM_CANDIDATES)
        for part in parts
    ]
    return SplitRunner(SHAPE, runners) if is_split else runners[0]


def token_bytes(token: int) -> bytes:
    """Return a token's bytes: one to three letters, or a part of a character."""
    if token % 7 == 0:
        return b"\xc3\xa9"[token % 2 : token % 2 + 1]
    return b"abcdefghij"[token % 8 : token % 8 + token % 3 + 1]


def make_request(number: int) -> GenerateRequest:
    """Return the random request of this number. It has a seed, and keeps its end."""
    chance = np.random.default_rng([52, number])
    vocab = SHAPE.vocab_size
    penalises = chance.random() < 0.5
    sampling = SamplingParams(
        temperature=float(chance.choice([0.0, 0.3, 1.0, 1.0, 1.5, 1000.0], p=[0.25, 0.15, 0.25, 0.2, 0.1, 0.05])),
        top_p=float(chance.choice([0.3, 0.7, 0.95, 1.0])),
        top_k=int(chance.choice([0, 5, 40, 128])),
        presence_penalty=float(chance.choice([0.0, 0.3, 0.5, 2.0])) if penalises else 0.0,
        frequency_penalty=float(chance.choice([0.0, 0.3, 0.7])) if penalises else 0.0,
        penalty_decay=float(chance.choice([0.0, 0.2, 0.9, PENALTY_DECAY, PENALTY_DECAY, 1.0])),
        min_p=float(chance.choice([0.02, 0.1])) if chance.random() < 0.2 else 0.0,
        logit_bias=_biases(chance, vocab) if chance.random() < 0.2 else {},
        repeat_penalty=float(chance.choice([0.8, 1.01, 1.1, 1.3, 2.0])) if chance.random() < 0.3 else 1.0,
        repeat_last_n=int(chance.choice([-1, 0, 1, 5, 64])),
        seed=int(chance.integers(2**63)),
    )
    num_stops, num_strings = int(chance.integers(0, 9)), int(chance.integers(0, 3))
    return GenerateRequest(
        chance.integers(1, vocab, size=chance.integers(1, 40)).tolist(),
        max_tokens=int(chance.integers(0, 40)),
        min_tokens=0,
        stop=tuple(bytes(chance.choice(list(b"abcdefghij"), size=chance.integers(1, 5))) for _ in range(num_strings)),
        stop_tokens=tuple(chance.integers(0, vocab, size=num_stops).tolist()),
        sampling=sampling,
        penalised_prompt=chance.integers(0, vocab, size=chance.integers(1, 30)).tolist()
        if chance.random() < 0.3
        else (),
        token_mask=(lambda: Residues(vocab)) if chance.random() < 0.05 else None,
        logprobs=int(chance.choice([0, 1, 5, 20])) if chance.random() < 0.3 else None,
        keep_end=True,
    )


def _biases(chance: np.random.Generator, vocab_size: int) -> dict[int, float]:
    tokens = chance.integers(0, vocab_size, size=int(chance.choice([1, 4, 80])))
    return {int(token): float(chance.choice([-math.inf, -2.0, 0.3, 3.0, 20.0])) for token in tokens}


_Logprobs: TypeAlias = tuple[tuple[int, ...], tuple[float, ...]]


@dataclass
class Answer:
    """The text, tokens and end that a client has received."""

    text: str = ""
    infos: list[TokenInfo] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def tokens(self) -> list[int]:
        return [info.token for info in self.infos]

    @property
    def logprobs(self) -> list[_Logprobs]:
        """The likeliest ids and the log-probabilities at each token that has them. Its own log-probability is first."""
        return [
            (tuple(token for token, _ in info.top), (info.logprob, *(value for _, value in info.top)))
            for info in self.infos
            if info.logprob is not None
        ]

    def assert_same(self, expected: Answer) -> None:
        """Assert that both are equal, except for the rounding of log-probabilities and of the state at the end."""
        assert (self.tokens, self.text) == (expected.tokens, expected.text)
        _assert_same_logprobs(self.logprobs, expected.logprobs)
        assert self.finished is not None
        assert expected.finished is not None
        assert replace(self.finished, end=None, stop_token=None) == replace(
            expected.finished, end=None, stop_token=None
        )
        end, expected_end = self.finished.end, expected.finished.end
        assert end is not None
        assert expected_end is not None
        assert end.tokens == expected_end.tokens
        np.testing.assert_allclose(end.logits, expected_end.logits, atol=1e-3)
        for name, values in end.state.items():
            np.testing.assert_allclose(values, expected_end.state[name], atol=1e-4)

    def assert_begins(self, whole: Answer) -> None:
        """Assert that this is the beginning of another answer."""
        assert self.tokens == whole.tokens[: len(self.tokens)]
        _assert_same_logprobs(self.logprobs, whole.logprobs[: len(self.logprobs)])
        assert whole.text.startswith(self.text)


def _assert_same_logprobs(found: Sequence[_Logprobs], expected: Sequence[_Logprobs]) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    for (_, values), (_, others) in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, others, atol=1e-3)


def answer_all(
    runner: Runner,
    arrivals: dict[int, int],
    leaves: dict[int, int],
    *,
    max_draws: int,
    request_of: Callable[[int], GenerateRequest] = make_request,
    drafts: DraftSettings = NO_DRAFTS,
) -> dict[int, Answer]:
    """Run requests, each from the step in `arrivals` on. `leaves` gives the tokens after which some are cancelled.

    `max_draws` and `drafts` are the scheduler's. Raises the error with which a request ends.
    """
    num_slots = NUM_SLOTS - len(drafts.spare_slots)
    scheduler = Scheduler(
        runner,
        token_bytes,
        num_slots=num_slots,
        clock=lambda: 0.0,
        max_draws=max_draws,
        drafts=drafts,
        mask_seconds=60.0,  # no mask is late
    )
    answers = {number: Answer() for number in arrivals}
    step = 0
    while scheduler.has_work or step <= max(arrivals.values()):
        for number in [number for number, arrival in arrivals.items() if arrival == step]:
            scheduler.submit(number, request_of(number))
        for delivery in scheduler.step():
            if isinstance(delivery.outcome, Exception):
                raise delivery.outcome
            answer = answers[delivery.key]
            if isinstance(delivery.outcome, TextDelta):
                answer.text += delivery.outcome.text
                answer.infos += delivery.outcome.tokens
            elif isinstance(delivery.outcome, Finished):
                answer.finished = delivery.outcome
        for number, count in leaves.items():
            if answers[number].finished is None and len(answers[number].tokens) >= count:
                scheduler.cancel(number)
        step += 1
    return answers
