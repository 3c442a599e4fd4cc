"""Answers that repeat their prompt, themselves or an earlier answer, and answers that repeat nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from rnn_engine.grammar import Vocabulary, json_grammar
from rnn_engine.grammar.compiled import CompiledGrammar, compile_grammar
from rnn_engine.tokenizer.world import WorldTokenizer

_ROOT = Path(__file__).resolve().parents[3]
WORLD = WorldTokenizer()
_PROMPT = 4000  # characters
_LEAVES_AT = 16  # tokens after which another answer to the same prompt is another one
_TOWNS = ("Lyon", "Turin", "Ghent", "Malmö", "Bern", "Porto", "Split", "Graz")
_TEXT = {"type": "string"}
_PERSON = {"name": _TEXT, "town": _TEXT, "trade": {"enum": ["baker", "joiner", "tailor"]}, "age": {"type": "integer"}}
_SCHEMA = {
    "type": "array",
    "items": {"type": "object", "properties": _PERSON, "required": [*_PERSON], "additionalProperties": False},
}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A prompt and what is said after it."""

    name: str
    prompt: Sequence[int]
    answer: Sequence[int]
    before: Sequence[int] = ()  # what was said after the same prompt before
    grammar: CompiledGrammar | None = None  # that the answer follows
    beside: Sequence[int] = ()  # a prompt that others ask again and again meanwhile, each time with another beginning

    def said_by_byte(self) -> list[int]:
        """Return the token that is said at each byte of the answer, however what lies before it is divided."""
        text = b"".join(map(WORLD.decode_bytes, self.answer)).decode()
        starts = [len(text[:place].encode()) for place in range(len(text))]
        said = [0] * (starts[-1] + 1)
        for place, start in enumerate(starts):
            said[start] = WORLD.encode(text[place : place + 64])[0]
        return said


def make_cases(num_tokens: int) -> list[Case]:
    """Return answers of at most so many tokens."""
    encode = WORLD.encode
    code = (_ROOT / "rnn_engine" / "scheduler" / "queue.py").read_text()[:_PROMPT]
    edited = re.sub(r"\bwaiting\b", "pending", code).replace("self._queue", "self._lines")
    text = (_ROOT / "docs" / "architecture.md").read_text()
    page, other = text[:_PROMPT], tuple(encode(text[_PROMPT:]))[:num_tokens]
    sentences = " Further: ".join(re.split(r"(?<=\.) ", page)[::3])
    numbers = np.random.default_rng(0).permutation(np.arange(300, 60000))[: 1000 + num_tokens].tolist()
    code_prompt, page_prompt = encode(f"{code}\n\n"), encode(f"{page}\n\n")
    leaving = (*other[:_LEAVES_AT], *numbers[: num_tokens - _LEAVES_AT])
    return [
        Case("code, edited", code_prompt, encode(edited)[:num_tokens]),
        Case("sentences of the prompt", page_prompt, encode(sentences)[:num_tokens]),
        Case("other prose", page_prompt, other),
        Case("nothing that repeats", numbers[num_tokens:], numbers[:num_tokens]),
        Case("asked again", page_prompt, other, before=other),
        Case("asked again, another answer", page_prompt, leaving, before=other),
        *_list_people(num_tokens),
        Case("code, edited, beside prompts", code_prompt, encode(edited)[:num_tokens], beside=numbers),
    ]


def _list_people(num_tokens: int) -> list[Case]:
    """Return what is told of people as JSON by a schema, for the first time and again."""
    people = [
        {
            "name": f"{first} {last}",
            "town": _TOWNS[(3 * place) % 8],
            "trade": ("baker", "joiner", "tailor")[place % 3],
            "age": 21 + 7 * place % 50,
        }
        for place, (first, last) in enumerate(
            (first, last)
            for last in ("Hollander", "Marchetti", "Lindqvist", "Okonkwo")
            for first in ("Margarethe", "Bartholomew", "Philippa", "Ignatius")
        )
    ]
    told = " ".join("{name}, who lives in {town}, is a {trade} and {age} years old.".format(**one) for one in people)
    encode = WORLD.encode
    grammar = compile_grammar(json_grammar(_SCHEMA), _vocabulary())
    prompt, answer = encode(f"{told}\n\n"), encode(json.dumps(people, ensure_ascii=False))[:num_tokens]
    return [
        Case("JSON by a schema", prompt, answer, grammar=grammar),
        Case("JSON by a schema, asked again", prompt, answer, before=answer, grammar=grammar),
    ]


@cache
def _vocabulary() -> Vocabulary:
    return Vocabulary.of(WORLD, 65536)
