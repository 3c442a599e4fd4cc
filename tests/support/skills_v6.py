"""The skills of the tests' tiny RWKV-6: reverse a word of different letters, and recall one of several digits.

The model, tests/versions/skills_v6.safetensors, was trained in torch on other dialogues of these skills, for 3,000
steps of 16 rows of 128 bytes. A token is a byte of the text. The training script is no longer kept.
"""

from __future__ import annotations

import random
from string import ascii_lowercase

from tools.demo_model.corpus.dialogue import Dialogue, Skill, Turn, draw


def reverse(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for a word of two to six letters written backwards."""

    def make(rng: random.Random) -> str:
        return "".join(rng.sample(ascii_lowercase, rng.randint(2, 6)))

    word = draw(rng, held_out, make, lambda word: ("reverse", word))
    return Dialogue((Turn(f"reverse {word}", word[::-1]),))


def recall(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that lists two to six letters, each with a digit, and asks for the digit of one letter."""

    def make(rng: random.Random) -> list[tuple[str, int]]:
        return [(letter, rng.randint(0, 9)) for letter in rng.sample(ascii_lowercase, rng.randint(2, 6))]

    pairs = draw(rng, held_out, make, lambda pairs: ("recall", pairs))
    letter, digit = rng.choice(pairs)
    listed = " ".join(f"{letter}{digit}" for letter, digit in pairs)
    return Dialogue((Turn(f"{listed}, {letter}?", str(digit)),))


SKILLS: dict[str, Skill] = {"reverse": reverse, "recall": recall}


def held_out(skill: str, count: int) -> list[Dialogue]:
    """Return `count` dialogues of one skill that were held out of training."""
    rng = random.Random(skill)
    return [SKILLS[skill](rng, True) for _ in range(count)]
