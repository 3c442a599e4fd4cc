"""Rewrites questions as people in a hurry type them, and finds those that are held out as openings."""

from __future__ import annotations

import random
import re
from functools import cache

from tools.demo_model.corpus.dialogue import USER, Dialogue, Turn
from tools.demo_model.openings.rubric import SHORT, load_openings, words

_LOWER, _UPPER, _FIRST = 0.35, 0.04, 0.05  # chances of each way to treat capitals
_NO_MARK, _NO_APOSTROPHE, _POLITE = 0.35, 0.3, 0.05
_BEFORE = ("Please", "Hi,", "Hey,", "OK,", "Now", "Hello,", "So,", "Well,", "And", "Hm,")
_AFTER = (" please", ", please", " pls", " now", " for me", " ok?", "!", "!!", "??", " then")


def hurried(rng: random.Random, dialogue: Dialogue, *, keeps_case: bool) -> Dialogue:
    """The same dialogue with other capitals and marks in its questions; all alike, as one user writes.

    `keeps_case`: the answer depends on the capitals of the question.
    """
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
    """Whether a question holds one of the held-out openings, in whatever capitals and marks."""
    return any(
        turn.asker == USER and _openings().search(f" {' '.join(words(turn.question))} ") for turn in dialogue.turns
    )


@cache
def _openings() -> re.Pattern[str]:
    held_out = (words(turn) for opening in load_openings() for turn in opening.turns)
    return re.compile("|".join(f" {' '.join(each)} " for each in held_out if len(each) > SHORT))
