"""A request's token mask: every token that is drawn is allowed, and is the one that the masked row leads to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rnn_engine.requests import GenerateRequest, SamplingParams, Started
from rnn_engine.sampling import Mask, TokenMask
from rnn_engine.sampling.masks import pack_mask
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits

TOKENIZER = ByteTokenizer()
VOCAB_SIZE = TOKENIZER.size
LOGITS = random_logits(VOCAB_SIZE)
PROMPT = [1 + n % 250 for n in range(70)]  # more than two steps
SAMPLING = SamplingParams(temperature=1.0, top_p=0.95, top_k=0, presence_penalty=0.4, seed=5)


class Residues:
    """Allows the tokens that leave the remainder r when divided by 5, where r counts up with every odd token."""

    def __init__(self, all_at: int | None = None) -> None:
        """`all_at` is the number of the token, from 0 on, for which all are allowed."""
        self.accepted: list[int] = []
        self._all_at = all_at

    @property
    def remainder(self) -> int:
        return sum(token % 2 for token in self.accepted) % 5

    def next(self) -> Mask | None:
        if len(self.accepted) == self._all_at:
            return None
        return pack_mask(np.arange(self.remainder, VOCAB_SIZE, 5, dtype=np.int32), VOCAB_SIZE)

    def accept(self, token: int) -> None:
        assert len(self.accepted) == self._all_at or token % 5 == self.remainder, "a token that is not allowed"
        self.accepted.append(token)


def ask(token_mask: Callable[[], TokenMask] | None, sampling: SamplingParams = SAMPLING) -> GenerateRequest:
    return GenerateRequest(PROMPT, max_tokens=12, stop_tokens=(), sampling=sampling, token_mask=token_mask, logprobs=2)


@pytest.mark.parametrize("num_candidates", [1, 8, 100])
@pytest.mark.parametrize("score_from", [None, 0, 30])
def test_masked_and_other_requests_of_one_batch_answer_as_alone(num_candidates: int, score_from: int | None) -> None:
    clients = Clients(FakeRunner(LOGITS, num_candidates=num_candidates), TOKENIZER.decode_bytes)
    requests = [
        replace(ask(Residues), score_from=score_from),
        ask(None),
        replace(ask(lambda: Residues(all_at=3), SamplingParams(temperature=0.0, seed=0)), keep_end=True),
        ask(Residues, SamplingParams(seed=9)),
    ]
    keys = [clients.send(request) for request in requests]
    clients.run()
    for key, request in zip(keys, requests, strict=True):
        assert_heard(clients.heard[key], run_alone(request, LOGITS, TOKENIZER.decode_bytes))


def test_the_candidates_are_read_and_no_whole_row_where_they_settle_the_draw() -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    clients.ask(ask(Residues, SamplingParams(temperature=0.0, seed=0)))
    assert clients.runner.rows_read == 0


def test_a_first_token_from_known_logits_is_masked_too() -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    initial = clients.after((1, 2, 3))
    request = replace(ask(Residues), prompt=[], initial_state=initial)
    assert_heard(clients.ask(request), run_alone(request, LOGITS, TOKENIZER.decode_bytes, before=(1, 2, 3)))


def test_the_mask_is_told_of_a_stop_token_and_asked_for_no_mask_after_the_end() -> None:
    masks: list[Once] = []

    class Once:
        def __init__(self) -> None:
            self.accepted: list[int] = []
            masks.append(self)

        def next(self) -> Mask:
            assert not self.accepted, "asked for the mask of a token that is not drawn"
            return pack_mask(np.array([0, 7], np.int32), VOCAB_SIZE)

        def accept(self, token: int) -> None:
            self.accepted.append(token)

    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    for stop_tokens, max_tokens in (((0, 7), 5), ((), 1)):
        request = replace(ask(Once), stop_tokens=stop_tokens, max_tokens=max_tokens, keep_end=True)
        assert clients.ask(request).finished.completion_tokens == 1
    assert [mask.accepted in ([0], [7]) for mask in masks] == [True, True]


class Failing(Residues):
    """Raises at the third token."""

    def accept(self, token: int) -> None:
        super().accept(token)
        if len(self.accepted) == 3:
            raise ValueError("the grammar is broken")


class Empty(Residues):
    """Allows nothing from the third token on."""

    def next(self) -> Mask | None:
        return super().next() if len(self.accepted) < 2 else np.zeros(9, np.uint32)


class Misfit(Residues):
    """Is made for another vocabulary."""

    def next(self) -> Mask | None:
        return np.ones(3, np.uint32)


@pytest.mark.parametrize(
    ("token_mask", "message"),
    [(Failing, "the grammar is broken"), (Empty, "allows no token"), (Misfit, "expected uint32 of shape (9,)")],
)
def test_a_mask_that_fails_ends_its_own_request_alone(token_mask: Callable[[], TokenMask], message: str) -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    bad, good = clients.send(ask(token_mask)), clients.send(ask(Residues))
    clients.run()
    assert message in str(clients.heard[bad].error)
    assert_heard(clients.heard[good], run_alone(ask(Residues), LOGITS, TOKENIZER.decode_bytes))
    assert isinstance(clients.ask(ask(Residues)).events[0], Started)  # its slot is free again
