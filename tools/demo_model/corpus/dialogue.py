"""The dialogues of the corpus: their text, the ways in which people type, and the choice of held-out items."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

from tools.demo_model.openings import SHORT, load_openings, words

T = TypeVar("T")

HELD_OUT_PERCENT = 10
LOWER_CASE_CHANCE = 0.25
NO_MARK_CHANCE = 0.25
USER, OBSERVATION = "User", "Observation"
_LOWER, _UPPER, _FIRST = 0.35, 0.04, 0.05  # chances of each way to treat capitals
_NO_MARK, _NO_APOSTROPHE, _POLITE = 0.35, 0.3, 0.05
_BEFORE = ("Please", "Hi,", "Hey,", "OK,", "Now", "Hello,", "So,", "Well,", "And", "Hm,")
_AFTER = (" please", ", please", " pls", " now", " for me", " ok?", "!", "!!", "??", " then")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a dialogue: a user's question or a tool's result, and the model's answer to it."""

    question: str
    answer: str
    asker: str = USER

    @property
    def record(self) -> str:
        """The question or tool result as a line of text, in the form of the server's chat template."""
        return f"{self.asker}: {self.question}"


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A dialogue of the corpus: its turns, after an optional system text."""

    turns: tuple[Turn, ...]
    system: str | None = None
    wrong_answers: tuple[str, ...] = ()  # other options for the last answer, where a choice makes sense

    @property
    def prompt(self) -> str:
        """The prompt for the last answer: all text before it, in the form of the server's chat template."""
        return "".join(text for text, _ in self.parts()[:-1])

    @property
    def answer(self) -> str:
        return self.turns[-1].answer

    def parts(self) -> list[tuple[str, bool]]:
        """Return the dialogue's text in pieces, each with a flag: True if the model has to learn to write it."""
        pieces: list[tuple[str, bool]] = []
        if self.system is not None:
            pieces.append((f"System: {self.system}\n\n", False))
        for turn in self.turns:
            pieces.append((f"{turn.record}\n\nAssistant:", False))
            pieces.append((f" {turn.answer}\n\n", True))
        return pieces

    def messages(self) -> list[dict[str, str]]:
        """Return the dialogue as chat messages, up to the last question."""
        out = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            out += [
                {"role": turn.asker.lower(), "content": turn.question},
                {"role": "assistant", "content": turn.answer},
            ]
        return out[:-1]


Skill: TypeAlias = Callable[[random.Random, bool], Dialogue]
"""Makes a dialogue of one skill; the flag asks for a held-out item instead of a training one."""

OpenSkill: TypeAlias = Callable[[random.Random], Dialogue]
"""Makes a dialogue of a skill of which nothing is held out."""


def is_held_out(*key: object) -> bool:
    """Return True if the item named by `key` is held out of training. This is so on every machine."""
    return zlib.crc32(repr(key).encode()) % 100 < HELD_OUT_PERCENT


def draw(rng: random.Random, held_out: bool, make: Callable[[random.Random], T], key: Callable[[T], object]) -> T:
    """Return a random item from `make` that is held out, or is not. `key` returns an item's key for `is_held_out`."""
    while True:
        item = make(rng)
        if is_held_out(key(item)) == held_out:
            return item


def ask(rng: random.Random, templates: Sequence[str], **fields: object) -> str:
    """Return a question from one of `templates` with `fields` filled in, typed hurriedly or carefully."""
    text = rng.choice(templates).format(**fields)
    first, _, rest = text.partition(" ")
    if rng.random() < LOWER_CASE_CHANCE and rest and first[1:].islower():
        text = f"{first.lower()} {rest}"
    if rng.random() < NO_MARK_CHANCE:
        text = text.rstrip("?.")
    if rng.random() < 0.08:
        text = f"{rng.choice(_BEFORE[:7])} {text}"
    return text


def hurried(rng: random.Random, dialogue: Dialogue, *, keeps_case: bool) -> Dialogue:
    """Return the dialogue with its questions retyped as one person would. `keeps_case` keeps their capitals."""
    style = rng.random()
    turns = tuple(_retyped(rng, turn, style, keeps_case) if turn.asker == USER else turn for turn in dialogue.turns)
    return Dialogue(turns, system=dialogue.system)


def _retyped(rng: random.Random, turn: Turn, style: float, keeps_case: bool) -> Turn:
    text = turn.question
    if rng.random() < _POLITE and text[:1].isalpha() and text[1:2].islower():
        text = f"{rng.choice(_BEFORE)} {text[0].lower()}{text[1:]}" if rng.random() < 0.5 else _with_end(rng, text)
    if style < _LOWER + _UPPER and not (keeps_case and any(map(str.isupper, text[1:]))):
        text = text.lower() if style < _LOWER else text.upper() if not keeps_case and len(text) < 60 else text
    elif style < _LOWER + _UPPER + _FIRST and text[1:2].islower():
        text = text[0].lower() + text[1:]
    if rng.random() < _NO_MARK:
        text = text.rstrip("?.!") or text
    if rng.random() < _NO_APOSTROPHE:
        text = text.replace("'", "")
    return Turn(text, turn.answer)


def _with_end(rng: random.Random, text: str) -> str:
    return text.rstrip("?.!") + rng.choice(_AFTER)


def is_opening(dialogue: Dialogue) -> bool:
    """Return True if a question of the dialogue contains a held-out opening. Capitals and punctuation are ignored."""
    return any(
        turn.asker == USER and _openings().search(f" {' '.join(words(turn.question))} ") for turn in dialogue.turns
    )


@cache
def _openings() -> re.Pattern[str]:
    held_out = (words(turn) for opening in load_openings() for turn in opening.turns)
    return re.compile("|".join(f" {' '.join(each)} " for each in held_out if len(each) > SHORT))
