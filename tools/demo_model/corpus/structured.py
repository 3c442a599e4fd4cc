"""Answers in JSON: fields taken from a sentence, and calls of tools. Held out are combinations of values."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.demo_model.corpus.dialogue import Dialogue, Turn, ask, is_held_out
from tools.demo_model.corpus.facts import CAPITALS
from tools.demo_model.corpus.words import NAMES, some_name

_CITIES = tuple(sorted(city for city in CAPITALS.pairs.values() if city.isalpha()))
_JOBS = ("teacher", "doctor", "farmer", "cook", "pilot", "nurse", "driver", "painter", "baker", "singer", "writer")

_SENTENCES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("name", "age"): (
        "{name} is {age} years old.",
        "{name} is {age}.",
        "At {age}, {name} is happy.",
        "{name} turned {age} today.",
        "My friend {name} is {age} years old.",
        "I met {name}, who is {age}.",
    ),
    ("name", "city"): (
        "{name} lives in {city}.",
        "{name} comes from {city}.",
        "In {city} I met {name}.",
        "{name} moved to {city}.",
        "My friend {name} lives in {city}.",
        "{name} has a house in {city}.",
    ),
    ("name", "job"): (
        "{name} is a {job}.",
        "{name} works as a {job}.",
        "The {job} is called {name}.",
        "My friend {name} is a {job}.",
        "{name} has a job as a {job}.",
    ),
    ("name", "age", "city"): (
        "{name} is {age} years old and lives in {city}.",
        "{name} is {age} and lives in {city}.",
        "{name}, {age}, lives in {city}.",
        "In {city} lives {name}, who is {age}.",
        "{name} from {city} is {age} years old.",
        "{name} lives in {city} and is {age}.",
        "My friend {name} is {age} years old and comes from {city}.",
    ),
    ("name", "age", "job"): (
        "{name} is {age} years old and works as a {job}.",
        "{name}, {age}, is a {job}.",
        "The {job} {name} is {age} years old.",
        "{name} is a {job} and {age} years old.",
    ),
    ("name", "job", "city"): (
        "{name} is a {job} in {city}.",
        "{name} works as a {job} in {city}.",
        "{name} lives in {city} and is a {job}.",
        "The {job} {name} comes from {city}.",
        "In {city}, {name} works as a {job}.",
    ),
}
_EXTRACT = (
    "Give the {fields} as JSON: {sentence}",
    "Extract {fields} as JSON: {sentence}",
    "{sentence} Give {fields} as JSON.",
    "Write the {fields} as JSON. {sentence}",
    "{sentence} Extract the {fields} as JSON.",
    "Return JSON with {fields}: {sentence}",
    "JSON with {fields}, please: {sentence}",
    "Find the {fields} in this sentence and answer in JSON: {sentence}",
    "Read this: {sentence} Answer with {fields} in JSON.",
    "Make a JSON object with {fields}: {sentence}",
)


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


def _told(rng: random.Random, held_out: bool) -> tuple[tuple[str, ...], dict[str, str | int], str]:
    """Return the fields of a sentence, their values and the sentence."""
    fields = rng.choice(sorted(_SENTENCES))
    while True:
        values: dict[str, str | int] = {
            "name": some_name(rng),
            "age": rng.randint(5, 99),
            "city": rng.choice(_CITIES),
            "job": rng.choice(_JOBS),
        }
        if is_held_out("json", *(values[field] for field in fields)) == held_out:
            return fields, values, rng.choice(_SENTENCES[fields]).format(**values)


def json_fields(rng: random.Random, held_out: bool) -> Dialogue:
    """{"name": "Anna", "age": 31}"""
    fields, values, sentence = _told(rng, held_out)
    question = rng.choice(_EXTRACT).format(fields=_listed(fields), sentence=sentence)
    return Dialogue((Turn(question, json.dumps({field: values[field] for field in fields})),))


_BY_SCHEMA = (
    "Answer in JSON that fits this schema: {schema}",
    "Answer with JSON by this schema: {schema}",
    "Respond with JSON. The schema is {schema}",
    "Return JSON that matches the schema {schema}",
    "JSON schema: {schema}",
    "Output JSON with this schema: {schema}",
)


def _schema(rng: random.Random, fields: list[str]) -> str:
    """A JSON schema of an object, with or without what people leave out."""
    titled = rng.random() < 0.25
    properties = {}
    for field in fields:
        kind = {"type": "integer" if field == "age" else "string"}
        properties[field] = {"title": field.capitalize(), **kind} if titled else kind
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.6:
        schema["required"] = fields
    if rng.random() < 0.2:
        schema["additionalProperties"] = False
    return json.dumps(schema)


def json_schema(rng: random.Random, held_out: bool) -> Dialogue:
    """The fields that a JSON schema asks for, in its order."""
    told, values, sentence = _told(rng, held_out)
    fields = rng.sample(told, rng.randint(1, len(told)))
    asked = rng.choice(_BY_SCHEMA).format(schema=_schema(rng, fields))
    answer = json.dumps({field: values[field] for field in fields})
    if rng.random() < 0.4:
        return Dialogue((Turn(sentence, answer),), system=asked)
    return Dialogue((Turn(rng.choice((f"{sentence} {asked}", f"{asked} {sentence}")), answer),))


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool with one argument, and what a user says who needs it."""

    name: str
    argument: str
    value: Callable[[random.Random], str | int]
    asked: tuple[str, ...]


TOOLS = (
    Tool(
        "weather",
        "city",
        lambda rng: rng.choice(_CITIES),
        (
            "What is the weather in {x}?",
            "How is the weather in {x}?",
            "Is it raining in {x}?",
            "Will it rain in {x}?",
            "Weather in {x}?",
            "What's the weather like in {x}?",
            "Is it cold in {x} today?",
        ),
    ),
    Tool(
        "timer",
        "minutes",
        lambda rng: rng.randint(1, 99),
        (
            "Set a timer for {x} minutes.",
            "Start a timer of {x} minutes.",
            "Wake me in {x} minutes.",
            "Timer, {x} minutes.",
            "Tell me when {x} minutes are over.",
            "Count down {x} minutes.",
        ),
    ),
    Tool(
        "call",
        "name",
        lambda rng: rng.choice(NAMES),
        (
            "Call {x}.",
            "Phone {x}, please.",
            "Ring {x}.",
            "Can you call {x}?",
            "I want to talk to {x}.",
            "Give {x} a call.",
        ),
    ),
    Tool(
        "play",
        "genre",
        lambda rng: rng.choice(("jazz", "rock", "pop", "folk", "blues", "opera", "soul", "metal")),
        (
            "Play some {x}.",
            "Play {x} music.",
            "I want to hear {x}.",
            "Put on some {x}.",
            "Can you play {x}?",
            "Some {x}, please.",
        ),
    ),
    Tool(
        "light",
        "room",
        lambda rng: rng.choice(("kitchen", "bedroom", "bathroom", "hall", "office", "garden", "cellar")),
        (
            "Turn on the light in the {x}.",
            "Light in the {x}, please.",
            "It is dark in the {x}.",
            "Switch on the {x} light.",
            "Make the {x} bright.",
            "I need light in the {x}.",
        ),
    ),
    Tool(
        "translate",
        "language",
        lambda rng: rng.choice(("French", "German", "Spanish", "Italian", "Greek", "Polish", "Danish")),
        (
            "How do you say hello in {x}?",
            "Translate hello into {x}.",
            "Say it in {x}.",
            "I need this in {x}.",
            "Put this into {x}.",
            "Translate this to {x}.",
        ),
    ),
)


def tool_call(rng: random.Random, held_out: bool) -> Dialogue:
    """{"name": "weather", "arguments": {"city": "Paris"}}"""
    tool = rng.choice(TOOLS)
    while True:
        offered = [tool, *rng.sample([other for other in TOOLS if other is not tool], rng.randint(1, 3))]
        rng.shuffle(offered)
        value = tool.value(rng)
        if is_held_out("tool", value, *(other.name for other in offered)) == held_out:
            break
    system = "Tools: " + ", ".join(f"{other.name}({other.argument})" for other in offered)
    call = {"name": tool.name, "arguments": {tool.argument: value}}
    return Dialogue((Turn(ask(rng, tool.asked, x=value), json.dumps(call)),), system=system)
