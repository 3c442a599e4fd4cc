"""The runners without a model: what they generate, and how long their steps take."""

from __future__ import annotations

import pytest

from rnn_engine.types import TokenDraw, TokenRun
from tools.bench.host import InstantRunner
from tools.bench.modelled import SHAPE, DeviceClock, ModelledRunner, WordTokenizer

SLOTS = 3


def draw(count: int) -> TokenDraw:
    return TokenDraw(0, 0, 0, 1.0, 1.0, count)


def test_the_instant_runner_draws_as_many_tokens_as_a_run_asks_for_and_others_at_each_step() -> None:
    runner = InstantRunner(SLOTS)
    batch = [TokenRun(slot, [1], rows=1, draw=draw(slot + 1)) for slot in range(SLOTS)]
    first, second = (runner.collect(runner.submit(batch)).drawn for _ in range(2))
    assert [len(drawn.tokens) for drawn in first] == [1, 2, 3]
    assert [drawn.tokens for drawn in first] != [drawn.tokens for drawn in second]
    assert all(0 < token < runner.shape.vocab_size for drawn in first for token in drawn.tokens)


def test_a_modelled_device_does_one_step_after_the_other() -> None:
    clock = DeviceClock()
    runner = ModelledRunner(SHAPE, SLOTS, step_seconds=100.0, clock=clock)
    begun = clock.now()
    tickets = [runner.submit([TokenRun(0, [1], rows=1, draw=draw(count))]) for count in (3, 2)]
    seconds = []
    for ticket in tickets:
        runner.collect(ticket)
        seconds.append(clock.now() - begun)
    assert seconds == pytest.approx([300.0, 500.0], abs=50.0)


def test_words_of_an_answer_are_the_tokens_that_were_generated() -> None:
    tokenizer = WordTokenizer(256)
    text = b"".join(map(tokenizer.decode_bytes, (1, 255, 0))).decode()
    assert tokenizer.encode(text) == [1, 255, 0]
    assert all(0 <= token < 256 for token in tokenizer.encode("other words"))
