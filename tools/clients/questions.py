"""The questions for all packages, and the types that they must parse the answers into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel, Field

Check: TypeAlias = Callable[[str], object]
"""Takes the URL of the API and returns the package's result. Raises if the package refuses the answer."""

Checks: TypeAlias = Mapping[str, Check]
"""What is checked of a package -> the check."""


class Row(NamedTuple):
    """The outcome of one check."""

    what: str
    works: bool
    outcome: str


MODEL = "demo"
GREEDY: dict[str, Any] = {"temperature": 0, "presence_penalty": 0, "frequency_penalty": 0}
PERSON_QUESTION = "Anna is 31 years old and likes red and blue."
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


def person_format() -> dict[str, Any]:
    """Return the `response_format` of a `Person`."""
    return {"type": "json_schema", "json_schema": {"name": "Person", "schema": Person.model_json_schema()}}
