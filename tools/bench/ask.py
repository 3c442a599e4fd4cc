"""Send one request to an engine, time it, and compare two answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rnn_engine.engine import Engine
from rnn_engine.requests import Finished, GenerateRequest, SamplingParams, Started, TextDelta, TokenInfo

TOKENS = 16  # generated
ALTERNATIVES = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and how long the first one took, in seconds."""

    first_token: float
    cached_tokens: int
    tokens: tuple[TokenInfo, ...]

    @property
    def ids(self) -> list[int]:
        return [info.token for info in self.tokens]

    def difference(self, other: Answer) -> float:
        """Return the greatest difference of a log-probability. Both answers have the same tokens."""
        assert self.ids == other.ids, f"other tokens: {self.ids} and {other.ids}"
        pairs = [_pairs(one, two) for one, two in zip(self.tokens, other.tokens, strict=True)]
        return max(abs(one - two) for found in pairs for one, two in found)


async def ask(engine: Engine, prompt: Sequence[int], max_tokens: int = TOKENS) -> Answer:
    """Ask for the likeliest continuation of `prompt`."""
    request = GenerateRequest(
        prompt,
        max_tokens=max_tokens,
        stop_tokens=(),
        sampling=SamplingParams(temperature=0.0),
        logprobs=ALTERNATIVES,
    )
    cached, first = 0, None
    tokens: list[TokenInfo] = []
    begun = time.perf_counter()
    async for event in engine.generate(request):
        match event:
            case Started():
                cached = event.cached_tokens
            case TextDelta():
                first = time.perf_counter() - begun if first is None else first
                tokens += event.tokens
            case Finished():
                break
    assert first is not None, "no token came"
    return Answer(first, cached, tuple(tokens))


def _pairs(one: TokenInfo, two: TokenInfo) -> list[tuple[float, float]]:
    first, second = dict(one.top), dict(two.top)
    assert one.logprob is not None
    assert two.logprob is not None
    return [(one.logprob, two.logprob), *((first[token], second[token]) for token in first.keys() & second.keys())]
