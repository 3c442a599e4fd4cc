"""A request's token mask: every drawn token is allowed, and is the one drawn from the masked row."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from rnn_engine.requests import GenerateRequest, SamplingParams, Started
from rnn_engine.sampling.masks import Mask, SequenceMask, TokenMask, allowed_tokens
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, random_logits
from tests.support.token_masks import Forms, Residues, pack_mask

TOKENIZER = ByteTokenizer()
VOCAB_SIZE = TOKENIZER.size
LOGITS = random_logits(VOCAB_SIZE)
PROMPT = [1 + n % 250 for n in range(70)]  # more than two steps
SAMPLING = SamplingParams(temperature=1.0, top_p=0.95, top_k=0, presence_penalty=0.4, seed=5)


def make_mask() -> TokenMask:
    return Residues(VOCAB_SIZE)


def ask(token_mask: Callable[[], TokenMask] | None, sampling: SamplingParams = SAMPLING) -> GenerateRequest:
    return GenerateRequest(PROMPT, max_tokens=12, stop_tokens=(), sampling=sampling, token_mask=token_mask, logprobs=2)


@pytest.mark.parametrize("num_candidates", [1, 8, 100])
@pytest.mark.parametrize("score_from", [None, 0, 30])
def test_masked_and_other_requests_of_one_batch_answer_as_alone(num_candidates: int, score_from: int | None) -> None:
    clients = Clients(FakeRunner(LOGITS, num_candidates=num_candidates), TOKENIZER.decode_bytes)
    requests = [
        replace(ask(make_mask), score_from=score_from),
        ask(None),
        replace(ask(lambda: Residues(VOCAB_SIZE, all_at=3), SamplingParams(temperature=0.0, seed=0)), keep_end=True),
        ask(make_mask, SamplingParams(seed=9)),
    ]
    keys = [clients.send(request) for request in requests]
    clients.run()
    for key, request in zip(keys, requests, strict=True):
        assert_heard(clients.heard[key], run_alone(request, LOGITS, TOKENIZER.decode_bytes))


def test_the_candidates_are_read_and_no_whole_row_where_they_settle_the_draw() -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    clients.ask(ask(make_mask, SamplingParams(temperature=0.0, seed=0)))
    assert clients.runner.rows_read == 0


def test_a_first_token_from_known_logits_is_masked_too() -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    initial = clients.after((1, 2, 3))
    request = replace(ask(make_mask), prompt=[], initial_state=initial)
    assert_heard(clients.ask(request), run_alone(request, LOGITS, TOKENIZER.decode_bytes, before=(1, 2, 3)))


def test_the_mask_is_told_of_a_stop_token_and_asked_for_no_mask_after_the_end() -> None:
    masks: list[Once] = []

    class Once:
        ended = False

        def __init__(self) -> None:
            self.accepted: list[int] = []
            masks.append(self)

        def forced(self) -> tuple[int, ...]:
            return ()

        def next(self) -> Mask:
            assert not self.accepted, "asked for the mask of a token that is not drawn"
            return pack_mask(np.array([0, 7], np.int32), VOCAB_SIZE)

        def accept(self, token: int) -> None:
            self.accepted.append(token)

        def copy(self) -> Once:
            return deepcopy(self)

    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    for stop_tokens, max_tokens in (((0, 7), 5), ((), 1)):
        request = replace(ask(Once), stop_tokens=stop_tokens, max_tokens=max_tokens, keep_end=True)
        assert clients.ask(request).finished.completion_tokens == 1
    assert [mask.accepted in ([0], [7]) for mask in masks] == [True, True]


class Failing(Residues):
    """A mask that raises at the third token."""

    def accept(self, token: int) -> None:
        super().accept(token)
        if len(self.accepted) == 3:
            raise ValueError("the grammar is broken")


class Empty(Residues):
    """A mask that allows nothing from the third token on."""

    def next(self) -> Mask | None:
        return super().next() if len(self.accepted) < 2 else np.zeros(9, np.uint32)


class Misfit(Residues):
    """A mask made for another vocabulary."""

    def next(self) -> Mask | None:
        return np.ones(3, np.uint32)


@pytest.mark.parametrize(
    ("token_mask", "message"),
    [(Failing, "the grammar is broken"), (Empty, "allows no token"), (Misfit, "expected uint32 of shape (9,)")],
)
def test_a_mask_that_fails_ends_its_own_request_alone(token_mask: type[Residues], message: str) -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    bad, good = clients.send(ask(lambda: token_mask(VOCAB_SIZE))), clients.send(ask(make_mask))
    clients.run()
    assert message in str(clients.heard[bad].error)
    assert_heard(clients.heard[good], run_alone(ask(make_mask), LOGITS, TOKENIZER.decode_bytes))
    assert isinstance(clients.ask(ask(make_mask)).events[0], Started)  # its slot is free again


def test_a_stop_token_is_allowed_wherever_the_text_may_end() -> None:
    class Grammar:
        ended = False

        def __init__(self) -> None:
            self.accepted: list[int] = []

        def forced(self) -> tuple[int, ...]:
            return ()

        def next(self) -> Mask:
            return pack_mask(np.array([0, 5] if self.accepted else [5], np.int32), VOCAB_SIZE)

        def accept(self, token: int) -> None:
            self.accepted.append(token)

        def copy(self) -> Grammar:
            return deepcopy(self)

    grammar = Grammar()
    mask = SequenceMask(grammar, VOCAB_SIZE, {0, 40})
    assert mask.current is not None
    assert (allowed_tokens(mask.current.mask, VOCAB_SIZE).tolist(), mask.current.count) == ([5], 1)
    mask.accept(5)
    mask.advance()
    assert (allowed_tokens(mask.current.mask, VOCAB_SIZE).tolist(), mask.current.count) == ([0, 5, 40], 3)
    mask.accept(40)
    assert grammar.accepted == [5]


@pytest.mark.parametrize(
    ("tokens", "admitted", "drawn"),
    [
        ([5, 3, 7, 1, 2, 8], 6, [True, True, False, False, False, True, True]),
        ([4, 7, 1, 2, 5, 8], 6, [True, False, False, False, False, True, True]),
        ([5, 6, 5], 1, [True, True]),  # 6 is not allowed
        ([3, 7, 2, 2], 2, [True, False, False]),  # 1 is forced
        ([9, 9, 5], 1, [True, True]),  # the second 9 ends the text
        ([], 0, [True]),
    ],
)
def test_a_draft_is_admitted_as_far_as_it_may_come_next(tokens: list[int], admitted: int, drawn: list[bool]) -> None:
    source = Forms(12, end=2)
    mask = SequenceMask(source, 12)
    draft, masks = mask.fork().follow(tokens)
    assert draft == tokens[:admitted]
    assert [each is not None for each in masks] == [each and place % 4 != 3 for place, each in enumerate(drawn)]
    for place, each in enumerate(masks):
        if each is not None:
            again = Forms(12, end=2)
            for token in tokens[:place]:
                again.accept(token)
            np.testing.assert_array_equal(each, again.next())
    assert source.accepted == []  # and nothing has changed
    assert mask.current is not None


def test_a_draft_ends_where_a_mask_fails() -> None:
    draft, masks = SequenceMask(Failing(VOCAB_SIZE), VOCAB_SIZE).fork().follow([0, 5, 1, 1, 11])
    assert (draft, len(masks)) == ([0, 5], 3)
    assert SequenceMask(Misfit(VOCAB_SIZE), VOCAB_SIZE).fork().follow([5]) == ([], [])
