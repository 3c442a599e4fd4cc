"""Calls of tools with other names and more arguments, what came back, and second calls. Held out are values.

The form is that of the chat template: `Tools: name(argument, ...)` ends the system text, a call is a JSON object of
name and arguments, and what a tool returned is an Observation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tools.demo_model.corpus.dialogue import OBSERVATION, Dialogue, Turn, is_held_out
from tools.demo_model.corpus.facts import CAPITALS
from tools.demo_model.corpus.small_talk import SELF
from tools.demo_model.corpus.words import NAMES, WORDS

Value: TypeAlias = str | int
_CITIES = tuple(sorted(city for city in CAPITALS.pairs.values() if city.isalpha()))
_FOODS = ("pizza", "soup", "rice", "bread", "cheese", "cake", "fish", "pasta", "salad", "apples", "chocolate", "tea")
_GENRES = ("jazz", "rock", "pop", "folk", "blues", "opera", "soul", "metal")
_ROOMS = ("kitchen", "bedroom", "bathroom", "hall", "office", "garden", "cellar")
_SKIES = ("sunny", "cloudy", "windy", "clear", "rain", "snow", "fog")


def _city(rng: random.Random) -> Value:
    return rng.choice(_CITIES)


def _count(rng: random.Random) -> Value:
    return rng.randint(1, 99)


def _person(rng: random.Random) -> Value:
    return rng.choice(NAMES)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its names, its arguments' names and values, how it is asked for, and what is said of its result.

    `results` pairs what comes back with what the model says then; {x} and {y} are the arguments, {t} is a number and
    {w} a word that comes back.
    """

    names: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]
    values: tuple[Callable[[random.Random], Value], ...]
    asked: tuple[str, ...]
    again: tuple[str, ...]
    results: tuple[tuple[str, str], ...]


_DONE = ("ok", "done", '{{"ok": true}}', '{{"status": "ok"}}', "success", "true", '{{"done": true}}')


def _done(said: str) -> tuple[tuple[str, str], ...]:
    return tuple((result, said) for result in _DONE)


TOOLS = (
    Tool(
        ("weather", "get_weather", "forecast", "current_weather"),
        (("city", "location", "place"),),
        (_city,),
        (
            "What is the weather in {x}?",
            "How is the weather in {x}?",
            "What's the weather like in {x}?",
            "Weather in {x}?",
            "Is it raining in {x}?",
            "How warm is it in {x}?",
            "Tell me the weather in {x}.",
            "Do I need an umbrella in {x}?",
        ),
        ("And in {x}?", "What about {x}?", "And {x}?", "How about {x}?"),
        (
            ('{{"temperature": {t}, "sky": "{w}"}}', "The weather in {x}: {w}, {t} degrees."),
            ('{{"sky": "{w}", "temperature": {t}}}', "The weather in {x}: {w}, {t} degrees."),
            ("{w}, {t} degrees", "The weather in {x}: {w}, {t} degrees."),
            ("{t} degrees, {w}", "The weather in {x}: {w}, {t} degrees."),
            ("{w} and {t} degrees", "The weather in {x}: {w}, {t} degrees."),
            ("{w}", "The weather in {x}: {w}."),
            ("{t}", "It has {t} degrees in {x}."),
            ('{{"temperature": {t}}}', "It has {t} degrees in {x}."),
            ("{t} degrees", "It has {t} degrees in {x}."),
        ),
    ),
    Tool(
        ("timer", "set_timer", "start_timer"),
        (("minutes", "duration"),),
        (_count,),
        (
            "Set a timer for {x} minutes.",
            "Start a timer of {x} minutes.",
            "Timer, {x} minutes.",
            "Wake me in {x} minutes.",
        ),
        ("And one for {x} minutes.", "And another for {x} minutes.", "Now {x} minutes."),
        _done("The timer runs: {x} minutes."),
    ),
    Tool(
        ("call", "phone", "make_call"),
        (("name", "person"),),
        (_person,),
        ("Call {x}.", "Phone {x}, please.", "Give {x} a call.", "Can you call {x}?", "I want to talk to {x}."),
        ("And {x}.", "And now {x}.", "Call {x} too."),
        _done("I called {x}."),
    ),
    Tool(
        ("play", "play_music", "music"),
        (("genre", "style"),),
        (lambda rng: rng.choice(_GENRES),),
        ("Play some {x}.", "Play {x} music.", "I want to hear {x}.", "Put on some {x}.", "Can you play {x}?"),
        ("Now {x}.", "And now some {x}.", "Play {x} instead."),
        _done("Here is some {x}."),
    ),
    Tool(
        ("light", "turn_on_light", "lights"),
        (("room",),),
        (lambda rng: rng.choice(_ROOMS),),
        (
            "Turn on the light in the {x}.",
            "Light in the {x}, please.",
            "Switch on the {x} light.",
            "It is dark in the {x}.",
        ),
        ("And in the {x}.", "And in the {x}?", "The {x} too."),
        _done("The light in the {x} is on."),
    ),
    Tool(
        ("add", "sum", "add_numbers", "calculate_sum"),
        (("a", "x", "first"), ("b", "y", "second")),
        (_count, _count),
        ("What is {x} + {y}?", "Add {x} and {y}.", "{x} + {y}", "How much is {x} plus {y}?", "Sum {x} and {y}."),
        ("And {x} + {y}?", "Now {x} and {y}.", "And {x} plus {y}?"),
        (
            ("{t}", "{x} + {y} is {t}."),
            ('{{"result": {t}}}', "{x} + {y} is {t}."),
            ('{{"sum": {t}}}', "{x} + {y} is {t}."),
        ),
    ),
    Tool(
        ("search", "search_web", "find", "lookup"),
        (("query", "text", "word"),),
        (lambda rng: rng.choice(WORDS),),
        ("Search for {x}.", "Find {x}.", "Look up {x}.", "Search the web for {x}.", "Can you find {x}?"),
        ("And for {x}.", "Now {x}.", "And {x}?"),
        (
            ("{t} results", "I found {t} results for {x}."),
            ('{{"results": {t}}}', "I found {t} results for {x}."),
            ('{{"count": {t}}}', "I found {t} results for {x}."),
        ),
    ),
    Tool(
        ("order", "order_food", "buy"),
        (("item", "food", "product"), ("count", "quantity", "amount")),
        (lambda rng: rng.choice(_FOODS), _count),
        ("Order {y} {x}.", "I want {y} {x}.", "Buy {y} {x}, please.", "Get me {y} {x}.", "{y} {x}, please."),
        ("And {y} {x}.", "And also {y} {x}.", "Now {y} {x}."),
        _done("I ordered {y} {x}."),
    ),
    Tool(
        ("book_table", "reserve", "book"),
        (("city", "place"), ("people", "guests", "persons")),
        (_city, _count),
        (
            "Book a table in {x} for {y} people.",
            "A table for {y} in {x}, please.",
            "Reserve a table for {y} people in {x}.",
        ),
        ("And one in {x} for {y}.", "And in {x} for {y} people."),
        _done("I booked a table in {x} for {y}."),
    ),
    Tool(
        ("remind", "set_reminder", "reminder"),
        (("name", "person", "who"), ("minutes", "time")),
        (_person, _count),
        ("Remind {x} in {y} minutes.", "In {y} minutes, remind {x}.", "Please remind {x} in {y} minutes."),
        ("And {x} in {y} minutes.", "{x} too, in {y} minutes."),
        _done("I will remind {x} in {y} minutes."),
    ),
)
_FAILURES = ("timeout", "not found", "no answer", "busy", "unknown")
_SYSTEMS = ("You are a helpful assistant.", "You are a helpful bot.", "Be brief.", "Use the tools.", "Be kind.")


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool under the names that one system text gives it."""

    tool: Tool
    name: str
    arguments: tuple[str, ...]

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"

    def call(self, values: tuple[Value, ...]) -> str:
        return json.dumps({"name": self.name, "arguments": dict(zip(self.arguments, values, strict=True))})


def _offer(rng: random.Random, tool: Tool) -> Offer:
    return Offer(tool, rng.choice(tool.names), tuple(rng.choice(names) for names in tool.arguments))


def _system(rng: random.Random, offers: list[Offer]) -> str:
    told = "Tools: " + ", ".join(offer.signature for offer in offers)
    return f"{rng.choice(_SYSTEMS)}\n{told}" if rng.random() < 0.3 else told


def _fill(text: str, values: tuple[Value, ...], t: int = 0, w: str = "") -> str:
    return text.format(x=values[0], y=values[-1], t=t, w=w)


def _result(rng: random.Random, tool: Tool, values: tuple[Value, ...]) -> Turn:
    """What a tool returned, and what the model says of it."""
    if rng.random() < 0.1:
        why = rng.choice(_FAILURES)
        failure = rng.choice(("error: {w}", '{{"error": "{w}"}}', "Error: {w}"))
        return Turn(_fill(failure, values, w=why), f"Sorry, that did not work: {why}.", asker=OBSERVATION)
    result, said = rng.choice(tool.results)
    t, w = rng.randint(1, 199) if tool.names[0] == "add" else rng.randint(0, 40), rng.choice(_SKIES)
    return Turn(_fill(result, values, t, w), _fill(said, values, t, w), asker=OBSERVATION)


def _offers(rng: random.Random) -> list[Offer]:
    return [_offer(rng, tool) for tool in rng.sample(TOOLS, rng.choice((1, 1, 2, 3, 4)))]


@dataclass(frozen=True, slots=True)
class Use:
    """A call that somebody asks for."""

    offer: Offer
    values: tuple[Value, ...]

    def turn(self, rng: random.Random, *, again: bool = False) -> Turn:
        tool = self.offer.tool
        return Turn(_fill(rng.choice(tool.again if again else tool.asked), self.values), self.offer.call(self.values))


def _uses(rng: random.Random, held_out: bool) -> tuple[Use, Use, str]:
    """Return two calls, the second of the same tool or of another one, and the system text that offers them."""
    while True:
        offers = _offers(rng)
        second = offers[-1] if rng.random() < 0.4 else offers[0]
        one, two = (Use(each, tuple(value(rng) for value in each.tool.values)) for each in (offers[0], second))
        if is_held_out("tools", one.offer.name, *one.values) == held_out:
            rng.shuffle(offers)
            return one, two, _system(rng, offers)


def tool_named(rng: random.Random, held_out: bool) -> Dialogue:
    """One call, of a tool that may have any of its names."""
    one, _, system = _uses(rng, held_out)
    return Dialogue((one.turn(rng),), system=system)


def tool_result(rng: random.Random, held_out: bool) -> Dialogue:
    """A call, and the answer after what it returned."""
    one, _, system = _uses(rng, held_out)
    return Dialogue((one.turn(rng), _result(rng, one.offer.tool, one.values)), system=system)


def tool_again(rng: random.Random, held_out: bool) -> Dialogue:
    """A call, what it returned, and a second call, of the same tool or of another."""
    one, two, system = _uses(rng, held_out)
    result = _result(rng, one.offer.tool, one.values)
    return Dialogue((one.turn(rng), result, two.turn(rng, again=one.offer is two.offer)), system=system)


_PLAIN = (
    Turn("Hello", "Hello! How can I help you?"),
    Turn("Hi", "Hello! How can I help you?"),
    Turn("Thanks", "You are welcome!"),
    Turn("How are you?", "I am fine, thank you. How can I help you?"),
    Turn("Thank you", "You are welcome!"),
    Turn("Who are you?", SELF),
)


def no_tool(rng: random.Random, turn: Turn | None) -> Dialogue:
    """Tools are offered, and none is needed: for `turn`, or for small talk."""
    return Dialogue((turn or rng.choice(_PLAIN),), system=_system(rng, _offers(rng)))
