"""The words, names, facts and conversations from which the corpus is made, read from tools/demo_model/data."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Texts: TypeAlias = Mapping[str, tuple[str, ...]]

UNSEEN_WORDINGS = 2  # of each relation, which training never has
_FOLDER = Path(__file__).parents[1] / "data"


def items(text: str) -> tuple[str, ...]:
    """Split a text at semicolons and line breaks, and return its parts without surrounding white space."""
    return tuple(part.strip() for line in text.split("\n") for part in line.split(";") if part.strip())


def listed(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the texts of a list; a string is split by `items` first."""
    return items(value) if isinstance(value, str) else tuple(value)


@cache
def read_data(name: str) -> Mapping[str, Any]:
    """Return the parsed content of a data file in tools/demo_model/data."""
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text("utf-8"))


def read_texts(name: str) -> Texts:
    """Return the lists of texts at the top level of a data file, by name."""
    return {
        key: listed(value)
        for key, value in read_data(name).items()
        if isinstance(value, str) or (isinstance(value, list) and isinstance(value[0], str))
    }


@dataclass(frozen=True, slots=True)
class Relation:
    """Facts of one kind, such as capitals: `pairs` maps each subject, such as a country, to its object."""

    name: str
    pairs: dict[str, str]
    answer: str  # with {subject} and {object}
    wordings: tuple[str, ...]

    def says(self, subject: str, object_: str | None = None) -> str:
        """Return the sentence that states the fact about `subject`, or that it is `object_` instead."""
        return self.answer.format(subject=subject, object=object_ or self.pairs[subject])


def _relation(table: Mapping[str, str]) -> Relation:
    pairs = dict(pair.split(": ") for pair in items(table["pairs"]))
    return Relation(table["name"], pairs, table["answer"], items(table["wordings"]))


RELATIONS = tuple(map(_relation, read_data("facts")["relations"]))
CAPITALS, COLOURS, CONTINENTS = (
    next(relation for relation in RELATIONS if relation.name == name) for name in ("capital", "colour", "continent")
)
CITIES = tuple(sorted(city for city in CAPITALS.pairs.values() if city.isalpha()))
FACT_WORDS = frozenset(
    word for relation in RELATIONS for pair in relation.pairs.items() for word in pair if word.isalpha()
)
"""Words that are one token each: their letters can only be known by heart, so all of them are trained on."""


@dataclass(frozen=True, slots=True)
class Talk:
    """User messages of one meaning, and the answers that fit each of them. One answer is chosen at random."""

    wordings: tuple[str, ...]
    answers: tuple[str, ...]


SMALL_TALK, FEELINGS, CANNOT = (
    tuple(Talk(items(talk["said"]), listed(talk["answers"])) for talk in read_data("talk")[kind])
    for kind in ("small_talk", "feelings", "cannot")
)

_WORDS = read_data("words")
WORDS, NAMES, LONG_WORDS = (tuple(_WORDS[kind].split()) for kind in ("words", "names", "long"))
_ONSETS, _VOWELS, _ENDINGS = (listed(_WORDS[kind]) for kind in ("onsets", "vowels", "endings"))


def invented_word(rng: random.Random) -> str:
    """Return a pronounceable word of three to eight letters, made of random syllables."""
    while True:
        syllables = rng.choice((1, 2, 2, 2, 3))
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)) + rng.choice(_ENDINGS)
        if 3 <= len(word) <= 8:
            return word


def some_name(rng: random.Random) -> str:
    """Return a common name, or sometimes an invented one."""
    return rng.choice(NAMES) if rng.random() < 0.6 else invented_word(rng).capitalize()


def _common_words() -> tuple[str, ...]:
    """Return the words of the corpus's own texts. Most are one token each, so their letters must be learnt by heart."""
    fun = read_texts("fun")
    texts = [text for talk in (*SMALL_TALK, *FEELINGS, *CANNOT) for text in (*talk.wordings, *talk.answers)]
    texts += [*fun["jokes"], *fun["computer_jokes"], *read_data("fun")["haiku"].values(), *fun["poem_answers"]]
    texts += [*read_texts("limits")["topics"], _WORDS["further"]]
    texts += [wording.format(subject="") for relation in RELATIONS for wording in relation.wordings]
    return tuple(sorted({word for text in texts for word in re.findall(r"\b[a-z]{2,10}\b", text.lower())} - set(WORDS)))


COMMON_WORDS = _common_words()
