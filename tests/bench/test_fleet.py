"""The parts of the fleet's benchmark that need no Ray."""

from __future__ import annotations

import pytest

from tools.bench.fleet.asking import Question, ask_all
from tools.bench.fleet.fleets import one_engine
from tools.bench.modelled import ANSWER_TOKEN, Hardware

HARDWARE = Hardware(slots=2, step=0.001, token=0.0)


async def test_answers_are_timed_and_their_tokens_counted() -> None:
    prompt = list(range(2, 42))
    said = [*prompt, *[ANSWER_TOKEN] * 3, 7]
    chain = [Question(0.0, {"prompt": tokens, "max_tokens": 3}) for tokens in (prompt, said)]
    async with one_engine(HARDWARE) as port:
        first, second = await ask_all(port, [chain], seconds=60.0)
    assert (first.tokens, first.prompt_tokens, first.cached_tokens) == (3, 40, 0)
    assert (second.tokens, second.prompt_tokens, second.cached_tokens) == (3, 44, 42)
    for answer in (first, second):
        assert HARDWARE.step <= answer.first <= answer.whole
    assert first.ended <= second.asked


async def test_nothing_is_asked_after_the_end() -> None:
    async with one_engine(HARDWARE) as port:
        assert await ask_all(port, [[Question(0.0, {"prompt": [2], "max_tokens": 1})]], seconds=0.0) == []


async def test_a_refusal_is_an_error() -> None:
    async with one_engine(HARDWARE) as port:
        with pytest.raises(RuntimeError, match="400: "):
            await ask_all(port, [[Question(0.0, {"prompt": [1000], "max_tokens": 1})]], seconds=60.0)
