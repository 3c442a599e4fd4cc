"""The checks of client packages: what they ask, and the types into which the answers are parsed.

A client is a function of `agents`, `chats`, `evaluations` or `vectors`. It imports its package, which its own
environment has, and returns its checks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel, Field

Check: TypeAlias = Callable[[str], object]
"""Takes the URL of the API and returns the package's result. Raises if the package refuses the answer."""

Checks: TypeAlias = Mapping[str, Check]
"""What is checked of a package -> the check."""

Ask: TypeAlias = Callable[[str, str], object]
"""Takes the URL of the API and a question, and returns what the package made of the answer."""

Ranking: TypeAlias = Sequence[tuple[int, float]]
"""The places in `TEXTS` of the ranked texts with their scores, the best first."""


class Row(NamedTuple):
    """The outcome of one check: what was checked, True if it works, and the answer or the error as a text."""

    what: str
    works: bool
    outcome: str


MODEL = "demo"
GREEDY: dict[str, Any] = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
FRANCE_QUESTION = "What is the capital of France?"
PERSON_QUESTION = "Anna is 31 years old and likes red and blue."
TEXTS = ["The capital of France is Paris.", "A cat has four legs.", "Madrid is the capital of Spain."]
WEATHER_QUESTION = "What is the weather in Paris?"


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Person(BaseModel):
    """A person."""

    name: str = Field(min_length=1, max_length=20)
    age: int = Field(ge=0, le=150)
    likes: list[Colour] = Field(max_length=3)


PERSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "Person", "schema": Person.model_json_schema()}}


def weather(city: str) -> str:
    """Return the weather in a city.

    Args:
        city: The city.
    """
    return f'{{"temperature": 22, "sky": "sunny", "city": "{city}"}}'


WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Return the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def answers_france(ask: Ask) -> Check:
    """Return a check that asks a plain question and tests that the answer is right."""
    return _holds(ask, FRANCE_QUESTION, "Paris")


def answers_weather(ask: Ask) -> Check:
    """Return a check that asks for the weather and tests that the answer repeats the tool's result."""
    return _holds(ask, WEATHER_QUESTION, "22")


def gives_person(ask: Ask) -> Check:
    """Return a check that asks for a person and tests that the answer is a `Person`, or the JSON of one."""

    def check(url: str) -> Person:
        answer = ask(url, PERSON_QUESTION)
        return answer if isinstance(answer, Person) else Person.model_validate_json(str(answer))

    return check


def calls_weather(ask: Ask) -> Check:
    """Return a check that asks for the weather and tests that the package receives a tool call from the model."""
    return lambda url: ask(url, WEATHER_QUESTION)


def ranks_texts(rank: Callable[[str, str], Ranking]) -> Check:
    """Return a check that has `TEXTS` ranked by a query, and tests that all come back, ordered by their scores.

    Whether the order is right is the model's business.
    """

    def check(url: str) -> Ranking:
        ranking = rank(url, FRANCE_QUESTION)
        scores = [score for _, score in ranking]
        assert sorted(index for index, _ in ranking) == list(range(len(TEXTS))), ranking
        assert scores == sorted(scores, reverse=True), ranking
        assert all(0 <= score <= 1 for score in scores), ranking
        return ranking

    return check


def embeds_texts(embed: Callable[[str], Sequence[Sequence[float]]]) -> Check:
    """Return a check that has `TEXTS` embedded, and tests that each has a vector of the same length."""

    def check(url: str) -> str:
        vectors = embed(url)
        assert len(vectors) == len(TEXTS), len(vectors)
        [length] = {len(vector) for vector in vectors}
        return f"{len(vectors)} vectors of {length} numbers"

    return check


def read_clients() -> dict[str, Any]:
    """Return the content of clients.toml."""
    return tomllib.loads(Path(__file__).with_name("clients.toml").read_text("utf-8"))


def root_of(url: str) -> str:
    """Return the server's root; `url` is that of OpenAI's API."""
    return url.removesuffix("/v1")


def _holds(ask: Ask, question: str, part: str) -> Check:
    def check(url: str) -> str:
        answer = str(ask(url, question))
        assert part in answer, answer
        return answer

    return check
