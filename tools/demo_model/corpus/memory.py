"""Remembering over turns: the user tells things, talks of something else, then asks. Held out are combinations."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.demo_model.corpus.dialogue import Dialogue, Turn, ask, is_held_out
from tools.demo_model.corpus.facts import CAPITALS, COLOURS
from tools.demo_model.corpus.plain import arithmetic, fact
from tools.demo_model.corpus.words import NAMES, some_name

_CITIES = tuple(sorted(city for city in CAPITALS.pairs.values() if city.isalpha()))
_COLOURS = tuple(sorted(set(COLOURS.pairs.values())))
_FOODS = ("pizza", "soup", "rice", "bread", "cheese", "cake", "fish", "pasta", "salad", "honey", "apples", "chocolate")
_JOBS = ("teacher", "doctor", "farmer", "cook", "pilot", "nurse", "driver", "painter", "baker", "singer", "writer")


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that a user may tell: how it is told, what the model says then, how it is asked and answered."""

    name: str
    value: Callable[[random.Random], str]
    told: tuple[str, ...]
    reply: str
    asked: tuple[str, ...]
    answer: str


TOPICS = (
    Topic(
        "name",
        some_name,
        (
            "My name is {x}.",
            "I am {x}.",
            "I'm {x}.",
            "Call me {x}.",
            "Hello, my name is {x}.",
            "Hi, I'm {x}.",
            "You can call me {x}.",
            "Hi! My name is {x}.",
            "This is {x}.",
        ),
        "Nice to meet you, {x}!",
        (
            "What is my name?",
            "What's my name?",
            "Who am I?",
            "Do you remember my name?",
            "Do you know my name?",
            "Tell me my name.",
            "Can you tell me my name?",
            "What am I called?",
            "Say my name.",
        ),
        "Your name is {x}.",
    ),
    Topic(
        "home",
        lambda rng: rng.choice(_CITIES),
        (
            "I live in {x}.",
            "My home is in {x}.",
            "I am living in {x}.",
            "I come from {x}.",
            "I'm from {x}.",
            "My city is {x}.",
            "I moved to {x}.",
            "I have a house in {x}.",
        ),
        "{x} is a nice place.",
        (
            "Where do I live?",
            "Where am I from?",
            "What city do I live in?",
            "Which city do I live in?",
            "Where is my home?",
            "Do you remember where I live?",
            "Tell me where I live.",
            "What is my city?",
        ),
        "You live in {x}.",
    ),
    Topic(
        "number",
        lambda rng: str(rng.randint(1, 99)),
        (
            "My lucky number is {x}.",
            "Remember the number {x}.",
            "My favourite number is {x}.",
            "The number is {x}.",
            "My number is {x}.",
            "Keep the number {x} in mind.",
            "Please remember the number {x}.",
            "The secret number is {x}.",
        ),
        "I will remember {x}.",
        (
            "What is my number?",
            "What was the number?",
            "Which number did I tell you?",
            "What number did I say?",
            "What is my lucky number?",
            "Do you remember the number?",
            "Tell me the number.",
            "What is the secret number?",
        ),
        "Your number is {x}.",
    ),
    Topic(
        "colour",
        lambda rng: rng.choice(_COLOURS),
        (
            "My favourite colour is {x}.",
            "My favorite color is {x}.",
            "I like the colour {x}.",
            "I love {x} things.",
            "The colour I like best is {x}.",
            "The color I like is {x}.",
        ),
        "{x} is a fine colour.",
        (
            "What is my favourite colour?",
            "What's my favorite color?",
            "Which colour do I like?",
            "What color do I like?",
            "Do you remember my favourite colour?",
            "Tell me my favourite colour.",
            "What colour do I like best?",
        ),
        "Your favourite colour is {x}.",
    ),
    Topic(
        "pet",
        some_name,
        (
            "My dog is called {x}.",
            "I have a dog called {x}.",
            "I have a dog named {x}.",
            "My dog's name is {x}.",
            "The name of my dog is {x}.",
            "We have a dog. His name is {x}.",
        ),
        "{x} is a good name for a dog.",
        (
            "What is my dog called?",
            "What is my dog's name?",
            "What's the name of my dog?",
            "Who is my dog?",
            "Do you remember my dog's name?",
            "Tell me the name of my dog.",
            "How is my dog called?",
        ),
        "Your dog is called {x}.",
    ),
    Topic(
        "food",
        lambda rng: rng.choice(_FOODS),
        (
            "I like to eat {x}.",
            "My favourite food is {x}.",
            "My favorite food is {x}.",
            "I love {x} for dinner.",
            "The food I like best is {x}.",
            "I eat {x} every day.",
        ),
        "Enjoy your {x}!",
        (
            "What do I like to eat?",
            "What is my favourite food?",
            "What's my favorite food?",
            "Which food do I like?",
            "What do I eat?",
            "Do you remember my favourite food?",
            "Tell me my favourite food.",
        ),
        "You like {x}.",
    ),
    Topic(
        "job",
        lambda rng: rng.choice(_JOBS),
        (
            "I work as a {x}.",
            "My job is {x}.",
            "I am a {x}.",
            "I'm a {x}.",
            "I have a job as a {x}.",
            "I became a {x}.",
        ),
        "A {x} has a lot to do.",
        (
            "What is my job?",
            "What's my job?",
            "What do I do?",
            "What do I work as?",
            "Do you remember my job?",
            "Tell me my job.",
            "What work do I do?",
        ),
        "You are a {x}.",
    ),
)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def memory(rng: random.Random, held_out: bool) -> Dialogue:
    """Two things told and, after perhaps another matter, one or both asked for."""
    while True:
        topics = rng.sample(TOPICS, rng.choice((1, 2, 2, 3)) if not held_out else 2)
        values = [topic.value(rng) for topic in topics]
        if is_held_out("memory", *values) == held_out:
            break
    turns = [
        Turn(ask(rng, topic.told, x=value), _capital(topic.reply.format(x=value)))
        for topic, value in zip(topics, values, strict=True)
    ]
    if held_out:
        asked = [rng.choice(list(zip(topics, values, strict=True)))]
    else:
        if rng.random() < 0.3:
            between = rng.choice((arithmetic, fact))(rng, False).turns[0]
            turns.insert(rng.randint(0, len(turns)), between)
        asked = rng.sample(list(zip(topics, values, strict=True)), rng.randint(1, len(topics)))
    turns += [Turn(ask(rng, topic.asked), topic.answer.format(x=value)) for topic, value in asked]
    topic, value = asked[-1]
    others = sorted({topic.value(rng) for _ in range(20)} - {value})[:3]
    return Dialogue(tuple(turns), wrong_answers=tuple(topic.answer.format(x=other) for other in others))


_STORED = ("The {thing} of {name} is {x}.", "{name} has a {x} {thing}.", "{name}'s {thing} is {x}.")
_THINGS = ("car", "bag", "hat", "coat", "house", "boat", "door", "cup", "bike", "shirt")
_STORED_ASKED = (
    "What colour is {name}'s {thing}?",
    "What color is the {thing} of {name}?",
    "Which colour is {name}'s {thing}?",
)


def told_in_passing(rng: random.Random, held_out: bool) -> Dialogue:
    """Two people's things in one message, and a question about one of them."""
    while True:
        first, second = rng.sample(NAMES, 2)
        thing, (one, two) = rng.choice(_THINGS), rng.sample(_COLOURS, 2)
        if is_held_out("passing", first, second, thing) == held_out:
            break
    told = " ".join(
        rng.choice(_STORED).format(name=name, thing=thing, x=x) for name, x in ((first, one), (second, two))
    )
    name, x = rng.choice(((first, one), (second, two)))
    question = f"{told} {rng.choice(_STORED_ASKED).format(name=name, thing=thing)}"
    wrong = tuple(f"{name}'s {thing} is {other}." for other in rng.sample([c for c in _COLOURS if c != x], 3))
    return Dialogue((Turn(question, f"{name}'s {thing} is {x}."),), wrong_answers=wrong)
