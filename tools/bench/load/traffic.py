"""The clients' conversations: several turns each, after one of a few long system texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

_TEXT = (
    "what who where when why how is are was the a an one two three four five red green blue cat dog horse bird tree "
    "house river city name big small old new first last sun moon day night of in on with and or but not please tell me"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Traffic:
    """The sizes of a load. A word is about a token."""

    systems: int = 4  # texts that conversations begin with; text n is chosen in proportion to 1 / n
    system_words: int = 300
    turns: int = 4
    question_words: int = 20
    answer_tokens: int = 32
    pause: float = 0.5  # seconds in the mean between an answer and the next question


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, and the seconds that the person thinks before asking it."""

    question: str
    pause: float


@dataclass(frozen=True, slots=True)
class Conversation:
    system: str
    turns: tuple[Turn, ...]


def conversations(traffic: Traffic, seed: int) -> Iterator[Conversation]:
    """Yield conversations without end, the same for the same seed. All seeds share the system texts."""
    systems = [_text(Random(number), traffic.system_words) for number in range(traffic.systems)]
    shares = [1 / (1 + number) for number in range(traffic.systems)]
    random = Random(f"conversations {seed}")
    while True:
        (system,) = random.choices(systems, shares)
        pauses = [0.0] + [random.expovariate(1 / traffic.pause) for _ in range(traffic.turns - 1)]
        yield Conversation(system, tuple(Turn(_text(random, traffic.question_words), pause) for pause in pauses))


def arrivals(per_second: float, seconds: float, seed: int) -> list[float]:
    """Return the arrivals of a Poisson process, in seconds from the beginning."""
    random, moments, now = Random(f"arrivals {seed}"), list[float](), 0.0
    while (now := now + random.expovariate(per_second)) < seconds:
        moments.append(now)
    return moments


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))
