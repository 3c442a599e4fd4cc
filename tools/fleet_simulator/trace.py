"""Who asks what: conversations that begin at random moments with one of many shared texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random

VOCAB = 256
ANSWER_TOKEN = 1  # what every answer says
_FIRST_TOKEN = 2


@dataclass(frozen=True, slots=True)
class Trace:
    """The load, for each machine of the fleet where it is a rate."""

    rate: float = 1.0  # conversations a second and machine
    prefixes: int = 200  # shared texts; text n is chosen in proportion to 1 / n ** skew
    skew: float = 1.0
    prefix_tokens: int = 1000
    turns: int = 4
    question_tokens: int = 50
    answer_tokens: int = 100
    think: float = 5.0  # seconds in the mean between an answer and the next question


@dataclass(frozen=True, slots=True)
class Conversation:
    begins: float  # seconds
    prefix: int
    questions: tuple[tuple[int, ...], ...]
    thinks: tuple[float, ...]  # seconds before each question


def conversations(trace: Trace, machines: int, seconds: float, seed: int) -> Iterator[Conversation]:
    """Yield the conversations that begin in so many seconds, in order."""
    random = Random(seed)
    shares = list(accumulate((1 + n) ** -trace.skew for n in range(trace.prefixes)))
    now = 0.0
    while (now := now + random.expovariate(trace.rate * machines)) < seconds:
        (prefix,) = random.choices(range(trace.prefixes), cum_weights=shares)
        questions = tuple(_tokens(random, trace.question_tokens) for _ in range(trace.turns))
        thinks = (0.0, *(random.expovariate(1 / trace.think) for _ in range(trace.turns - 1)))
        yield Conversation(now, prefix, questions, thinks)


def prefix_tokens(trace: Trace, prefix: int) -> tuple[int, ...]:
    """Return the shared text of this number."""
    return _tokens(Random(f"prefix {prefix}"), trace.prefix_tokens)


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.choices(range(_FIRST_TOKEN, VOCAB), k=count))
