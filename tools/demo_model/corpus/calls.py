"""The skills of answering in JSON and of calling tools. Some values and combinations of them are held out of training.

The form is that of the chat template: `Tools: name(argument, ...)` ends the system text, a call is a JSON object of
name and arguments, and the result of a tool is an Observation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tools.demo_model.corpus.dialogue import OBSERVATION, Dialogue, OpenSkill, Skill, Turn, ask, is_held_out
from tools.demo_model.corpus.questions import fact
from tools.demo_model.corpus.texts import CITIES, NAMES, WORDS, listed, read_data, read_texts, some_name

Value: TypeAlias = str | int
Draw: TypeAlias = Callable[[random.Random], Value]

TEXTS = read_texts("calls")
_PLAIN = tuple(Turn(said, answer) for said, answer in read_data("calls")["plain"].items())
_SENTENCES = {tuple(each["fields"]): listed(each["texts"]) for each in read_data("calls")["sentences"]}
_VALUES: Mapping[str, Draw] = {
    "city": lambda rng: rng.choice(CITIES),
    "number": lambda rng: rng.randint(1, 99),
    "name": lambda rng: rng.choice(NAMES),
    "genre": lambda rng: rng.choice(TEXTS["genres"]),
    "room": lambda rng: rng.choice(TEXTS["rooms"]),
    "word": lambda rng: rng.choice(WORDS),
    "food": lambda rng: rng.choice(TEXTS["foods"]),
    "language": lambda rng: rng.choice(TEXTS["languages"]),
}
_GIVEN: Mapping[str, Draw] = {
    **{field: _VALUES[field] for field in ("name", "city", "room", "food", "language", "word", "number")},
    "age": lambda rng: rng.randint(1, 99),
    "job": lambda rng: rng.choice(TEXTS["jobs"]),
    "friend": some_name,
    "user": lambda rng: some_name(rng).lower(),
    "id": lambda rng: rng.randint(1, 9999),
    "title": lambda rng: " ".join(rng.sample(WORDS, 2)),
}
"""Field -> its value in an object that is asked for by fields and values."""


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]


def _told(rng: random.Random, held_out: bool) -> tuple[tuple[str, ...], dict[str, Value], str]:
    """Return the names of the fields that a random sentence mentions, their values, and the sentence."""
    fields = rng.choice(sorted(_SENTENCES))
    while True:
        values: dict[str, Value] = {
            "name": some_name(rng),
            "age": rng.randint(5, 99),
            "city": rng.choice(CITIES),
            "job": rng.choice(TEXTS["jobs"]),
        }
        if is_held_out("json", *(values[field] for field in fields)) == held_out:
            return fields, values, rng.choice(_SENTENCES[fields]).format(**values)


def json_fields(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for fields of a sentence as JSON, such as {"name": "Anna", "age": 31}."""
    fields, values, sentence = _told(rng, held_out)
    article = rng.choice(("", "", "", "the ", "its "))
    asked = _listed(tuple(f"{article}{field}" for field in fields)).removeprefix(article)
    question = rng.choice(TEXTS["extract"]).format(fields=asked, sentence=sentence)
    return Dialogue((Turn(question, json.dumps({field: values[field] for field in fields})),))


def json_given(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue that asks for an object of given fields and values, such as "JSON with the name Ann"."""
    while True:
        fields = rng.sample(sorted(_GIVEN), rng.choice((1, 1, 2, 2, 3)))
        values = {field: _GIVEN[field](rng) for field in fields}
        if is_held_out("given", *values.values()) == held_out:
            break
    pair = rng.choice(TEXTS["given_pairs"])
    pairs = [pair.format(field=field, value=value) for field, value in values.items()]
    question = rng.choice(TEXTS["given"]).format(pairs=rng.choice((_listed(tuple(pairs)), ", ".join(pairs))))
    return Dialogue((Turn(question, json.dumps(values)),))


def _schema(rng: random.Random, fields: list[str]) -> str:
    """Return the JSON schema of an object. Keywords that people often omit are included at random."""
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
    """Return a dialogue that asks for an object under a JSON schema. It has the fields in the schema's order."""
    told, values, sentence = _told(rng, held_out)
    fields = rng.sample(told, rng.randint(1, len(told)))
    asked = rng.choice(TEXTS["by_schema"]).format(schema=_schema(rng, fields))
    answer = json.dumps({field: values[field] for field in fields})
    if rng.random() < 0.4:
        return Dialogue((Turn(sentence, answer),), system=asked)
    return Dialogue((Turn(rng.choice((f"{sentence} {asked}", f"{asked} {sentence}")), answer),))


@dataclass(frozen=True, slots=True)
class Tool:
    """The templates of a tool: its possible names, its arguments, the questions that need it, and its results.

    `results` pairs a result with the model's answer to it. {x} and {y} are the arguments; {t} is a number, and {w} a
    word in the result.
    """

    names: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]
    values: tuple[Draw, ...]
    asked: tuple[str, ...]
    again: tuple[str, ...]
    results: tuple[tuple[str, str], ...]


def _tool(table: Mapping[str, Any]) -> Tool:
    if "done" in table:
        results = tuple((result, table["done"]) for result in TEXTS["done"])
    else:
        results = tuple((result, said) for result, said in table.get("results", ()))
    return Tool(
        names=tuple(table["names"]),
        arguments=tuple(map(tuple, table["arguments"])),
        values=tuple(_VALUES[kind] for kind in table["values"]),
        asked=listed(table["asked"]),
        again=listed(table.get("again", ())),
        results=results,
    )


TOOLS = tuple(map(_tool, read_data("calls")["tools"]))


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as a system text offers it."""

    name: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"

    def call(self, values: Mapping[str, Value]) -> str:
        """Return the JSON of a call with `values` of some or all arguments. They are in the tool's order."""
        arguments = {argument: values[argument] for argument in self.arguments if argument in values}
        return json.dumps({"name": self.name, "arguments": arguments})


@dataclass(frozen=True, slots=True)
class KnownOffer(Offer):
    """An offer of a tool that has templates, with one of the tool's names, and names of its arguments."""

    tool: Tool

    def call_with(self, values: tuple[Value, ...]) -> str:
        """Return the JSON of a call with the values of all arguments."""
        return self.call(dict(zip(self.arguments, values, strict=True)))


SIMPLE_TOOLS = tuple(
    KnownOffer(table["names"][0], tuple(names[0] for names in table["arguments"]), _tool(table))
    for table in read_data("calls")["simple_tools"]
)
"""Tools of one name and one argument."""


def tool_call(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue with a call: {"name": "weather", "arguments": {"city": "Paris"}}."""
    offer = rng.choice(SIMPLE_TOOLS)
    while True:
        offers = [offer, *rng.sample([other for other in SIMPLE_TOOLS if other is not offer], rng.randint(1, 3))]
        rng.shuffle(offers)
        value = offer.tool.values[0](rng)
        if is_held_out("tool", value, *(other.name for other in offers)) == held_out:
            break
    turn = Turn(ask(rng, offer.tool.asked, x=value), offer.call_with((value,)))
    return Dialogue((turn,), system=listed_tools(offers))


def _offer(rng: random.Random, tool: Tool) -> KnownOffer:
    return KnownOffer(rng.choice(tool.names), tuple(rng.choice(names) for names in tool.arguments), tool)


def listed_tools(offers: Sequence[Offer]) -> str:
    """Return the line of a system text that offers tools."""
    return "Tools: " + ", ".join(map(str, offers))


def _system(rng: random.Random, offers: Sequence[Offer]) -> str:
    told = listed_tools(offers)
    return f"{rng.choice(TEXTS['systems'])}\n{told}" if rng.random() < 0.3 else told


def _fill(text: str, values: tuple[Value, ...], t: int = 0, w: str = "") -> str:
    return text.format(x=values[0], y=values[-1], t=t, w=w)


def _result(rng: random.Random, tool: Tool, values: tuple[Value, ...]) -> Turn:
    """Return a turn in which a tool returns a result or, rarely, an error, and the model answers the user."""
    if rng.random() < 0.1:
        why = rng.choice(TEXTS["failures"])
        failure = rng.choice(("error: {w}", '{{"error": "{w}"}}', "Error: {w}"))
        return Turn(_fill(failure, values, w=why), f"Sorry, that did not work: {why}.", asker=OBSERVATION)
    result, said = rng.choice(tool.results)
    t, w = rng.randint(1, 199) if tool.names[0] == "add" else rng.randint(0, 40), rng.choice(TEXTS["skies"])
    return Turn(_fill(result, values, t, w), _fill(said, values, t, w), asker=OBSERVATION)


def _offers(rng: random.Random) -> list[KnownOffer]:
    return [_offer(rng, tool) for tool in rng.sample(TOOLS, rng.choice((1, 1, 2, 3, 4)))]


@dataclass(frozen=True, slots=True)
class Use:
    """A call of an offered tool with argument values. `turn` makes the user's question for it."""

    offer: KnownOffer
    values: tuple[Value, ...]

    def turn(self, rng: random.Random, *, again: bool = False) -> Turn:
        tool = self.offer.tool
        return Turn(
            _fill(rng.choice(tool.again if again else tool.asked), self.values), self.offer.call_with(self.values)
        )


def _uses(rng: random.Random, held_out: bool) -> tuple[Use, Use, str]:
    """Return two calls, of the same tool or of different ones, and the system text that offers the tools."""
    while True:
        offers = _offers(rng)
        second = offers[-1] if rng.random() < 0.4 else offers[0]
        one, two = (Use(each, tuple(value(rng) for value in each.tool.values)) for each in (offers[0], second))
        if is_held_out("tools", one.offer.name, *one.values) == held_out:
            rng.shuffle(offers)
            return one, two, _system(rng, offers)


def tool_named(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue with one call of a tool, which is offered under any of its names."""
    one, _, system = _uses(rng, held_out)
    return Dialogue((one.turn(rng),), system=system)


def tool_result(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue with a call, the tool's result, and the model's answer to that."""
    one, _, system = _uses(rng, held_out)
    return Dialogue((one.turn(rng), _result(rng, one.offer.tool, one.values)), system=system)


def tool_again(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue with a call, its result, and a second call of the same tool or of another one."""
    one, two, system = _uses(rng, held_out)
    result = _result(rng, one.offer.tool, one.values)
    return Dialogue((one.turn(rng), result, two.turn(rng, again=one.offer is two.offer)), system=system)


def no_tool(rng: random.Random) -> Dialogue:
    """Return a dialogue that offers tools for a question that needs none."""
    return Dialogue((plain_turn(rng),), system=_system(rng, _offers(rng)))


def plain_turn(rng: random.Random) -> Turn:
    """Return a turn for which no tool is needed: it asks for a fact, or is small talk."""
    return fact(rng, False).turns[0] if rng.random() < 0.4 else rng.choice(_PLAIN)


SKILLS: Mapping[str, Skill] = {
    "json_fields": json_fields,
    "json_given": json_given,
    "tool_call": tool_call,
    "json_schema": json_schema,
    "tool_named": tool_named,
    "tool_result": tool_result,
    "tool_again": tool_again,
}
OPEN_SKILLS: Mapping[str, OpenSkill] = {"no_tool": no_tool}
