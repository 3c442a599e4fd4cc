"""What the model is asked: to reverse a word of letters that differ, and to recall one of several numbers.

A text is its bytes. Needs the standard library alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from string import ascii_lowercase

from tools.demo_model.corpus.dialogue import Dialogue, Skill, Turn, draw


def reverse(rng: random.Random, held_out: bool) -> Dialogue:
    """A word to write backwards, of up to six letters."""

    def make(rng: random.Random) -> str:
        return "".join(rng.sample(ascii_lowercase, rng.randint(2, 6)))

    word = draw(rng, held_out, make, lambda word: ("reverse", word))
    return Dialogue((Turn(f"reverse {word}", word[::-1]),))


def recall(rng: random.Random, held_out: bool) -> Dialogue:
    """Up to six letters, each with a digit, and the question for one of them."""

    def make(rng: random.Random) -> list[tuple[str, int]]:
        return [(letter, rng.randint(0, 9)) for letter in rng.sample(ascii_lowercase, rng.randint(2, 6))]

    pairs = draw(rng, held_out, make, lambda pairs: ("recall", pairs))
    letter, digit = rng.choice(pairs)
    listed = " ".join(f"{letter}{digit}" for letter, digit in pairs)
    return Dialogue((Turn(f"{listed}, {letter}?", str(digit)),))


SKILLS: dict[str, Skill] = {"reverse": reverse, "recall": recall}


def dialogues(seed: int) -> Iterator[Dialogue]:
    """Training dialogues without end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield SKILLS[rng.choice(list(SKILLS))](rng, False)


def held_out(skill: str, count: int) -> list[Dialogue]:
    """`count` dialogues of one skill that training never sees."""
    rng = random.Random(skill)
    return [SKILLS[skill](rng, True) for _ in range(count)]
