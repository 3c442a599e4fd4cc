"""Tokens that a mask forces: they are run together, and appear in every answer like drawn ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, TextDelta
from rnn_engine.sampling.masks import Mask
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.clients import Clients, assert_heard, run_alone
from tests.support.fake_runner import FakeRunner, table_logits
from tests.support.token_masks import Residues

TOKENIZER = ByteTokenizer()
VOCAB_SIZE = TOKENIZER.size
LOGITS = table_logits(VOCAB_SIZE)
SAMPLING = SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.7, frequency_penalty=0.3, seed=3)


class Forcing(Residues):
    """A mask that forces given tokens at given places, ends after `end` tokens, and allows all drawn tokens."""

    def __init__(self, forced: Mapping[int, Sequence[int]], end: int | None = None) -> None:
        super().__init__(VOCAB_SIZE)
        self._forced = {first + n: token for first, tokens in forced.items() for n, token in enumerate(tokens)}
        self._end = end

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return len(self.accepted) == self._end

    def forced(self) -> tuple[int, ...]:
        place = len(self.accepted)
        following = takewhile(self._forced.__contains__, count(place))
        return tuple(self._forced[number] for number in following)

    def next(self) -> Mask | None:
        assert not self.forced(), "asked for the mask of a token that is not drawn"
        assert not self.ended
        return None

    def accept(self, token: int) -> None:
        forced = self.forced()
        assert not forced or token == forced[0], "a token that does not follow"
        self.accepted.append(token)


WORD = TOKENIZER.encode("forced")


def ask(forced: Mapping[int, Sequence[int]], end: int | None = None, **fields: object) -> GenerateRequest:
    request = GenerateRequest(
        [5, 6, 7], max_tokens=20, sampling=SAMPLING, token_mask=lambda: Forcing(forced, end), stop_tokens=()
    )
    return replace(request, **fields)  # type: ignore[arg-type]


CASES = {
    "in the middle": ask({3: WORD}),
    "at the beginning": ask({0: WORD}),
    "all": ask({0: WORD}, end=len(WORD)),
    "at the end": ask({4: WORD}, end=4 + len(WORD)),
    "twice in a row": ask({2: WORD, 2 + len(WORD): WORD}),
    "one token": ask({3: WORD[:1]}),
    "up to max_tokens": ask({3: WORD}, max_tokens=7),
    "one stop token": ask({3: WORD}, stop_tokens=(WORD[2],)),
    "a stop string": ask({3: WORD}, stop=(b"rce",)),
    "a stop string that ends in drawn tokens": ask({3: WORD}, stop=(b"ced" + bytes(range(1)),)),
    "many": ask({2: WORD * 10}, max_tokens=80),
    "a prompt that is scored": ask({0: WORD}, score_from=0),
}


@pytest.mark.parametrize("logprobs", [None, 0, 3])
@pytest.mark.parametrize("keep_end", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_what_it_is_token_by_token(case: str, keep_end: bool, logprobs: int | None) -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    request = replace(CASES[case], keep_end=keep_end, logprobs=logprobs)
    keys = [clients.send(request), clients.send(replace(request, token_mask=None)), clients.send(request)]
    clients.run()
    expected = run_alone(request, LOGITS, TOKENIZER.decode_bytes)
    assert_heard(clients.heard[keys[0]], expected)
    assert_heard(clients.heard[keys[2]], expected)


@given(
    forced=st.dictionaries(st.integers(0, 12), st.lists(st.integers(1, 255), min_size=1, max_size=9), max_size=3),
    end=st.none() | st.integers(1, 20),
    max_tokens=st.integers(1, 25),
    keep_end=st.booleans(),
    logprobs=st.none() | st.integers(0, 2),
    stops=st.lists(st.binary(min_size=1, max_size=2), max_size=3),
    stop_tokens=st.lists(st.integers(0, 256), max_size=3),
    max_step=st.integers(2, 16),
)
@settings(max_examples=40, deadline=None)
def test_random_answers_are_what_they_are_token_by_token(
    forced: dict[int, list[int]],
    end: int | None,
    max_tokens: int,
    keep_end: bool,
    logprobs: int | None,
    stops: list[bytes],
    stop_tokens: list[int],
    max_step: int,
) -> None:
    clients = Clients(FakeRunner(LOGITS, num_slots=2, max_tokens=max_step, max_rows=max_step), TOKENIZER.decode_bytes)
    request = ask(
        forced,
        end,
        max_tokens=max_tokens,
        keep_end=keep_end,
        logprobs=logprobs,
        stop=tuple(stops),
        stop_tokens=tuple(stop_tokens),
    )
    keys = [clients.send(request), clients.send(request)]
    clients.run()
    for key in keys:
        assert_heard(clients.heard[key], run_alone(request, LOGITS, TOKENIZER.decode_bytes))


def test_forced_tokens_take_one_step() -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    clients.ask(ask({1: WORD * 5}, max_tokens=32))
    # the prompt and its first token, the forced ones and the next, which is the last
    assert clients.scheduler.counters.steps == 2
    assert clients.scheduler.counters.generated_tokens == 32


def test_forced_tokens_come_at_once_unless_their_log_probabilities_are_wanted() -> None:
    clients = Clients(FakeRunner(LOGITS), TOKENIZER.decode_bytes)
    for logprobs, expected in ((None, [1 + len(WORD), 1]), (1, [1 + len(WORD), 1])):
        heard = clients.ask(ask({1: WORD}, max_tokens=2 + len(WORD), logprobs=logprobs))
        counts = [len(event.tokens) for event in heard.events if isinstance(event, TextDelta)]
        assert counts == expected
        assert isinstance(heard.events[-1], Finished)
