"""Sums beyond two digits, sums told in words, small products, and what comes next."""

from __future__ import annotations

import random

from tools.demo_model.corpus.dialogue import Dialogue, Turn, ask, draw
from tools.demo_model.corpus.plain import DIFFERENCES, SUMS
from tools.demo_model.corpus.words import NAMES

_MORE_SUMS = (
    "How much is {a} and {b}?",
    "{a} and {b}?",
    "Add {a} to {b}.",
    "Sum of {a} and {b}",
    "What's {a} and {b}?",
)
_THINGS = ("apples", "books", "cards", "coins", "eggs", "cups", "stones", "stamps", "pencils", "balls", "cakes", "hats")
_GAINS = (
    "I have {a} {things} and get {b} more. How many {things} do I have?",
    "{n} has {a} {things} and buys {b} more. How many {things} does {n} have now?",
    "There are {a} {things} in the bag. I put in {b} more. How many are there?",
    "I had {a} {things} and found {b}. How many do I have now?",
    "If I have {a} {things} and you give me {b}, how many {things} do I have?",
    "I have {a} {things} and {b} {others}. How many things is that?",
)
_LOSSES = (
    "I have {a} {things} and give away {b}. How many {things} are left?",
    "{n} has {a} {things} and loses {b}. How many {things} does {n} have now?",
    "There are {a} {things} on the table. I take {b}. How many are left?",
    "I had {a} {things} and sold {b}. How many do I have?",
    "If I have {a} {things} and eat {b}, how many are left?",
)
_PRODUCTS = (
    "What is {a} times {b}?",
    "{a} * {b}",
    "{a} x {b}",
    "{a}*{b}=",
    "How much is {a} times {b}?",
    "Multiply {a} by {b}.",
    "{a} times {b}",
    "What is {a} * {b}?",
    "What's {a} x {b}?",
    "Compute {a} times {b}.",
    "What is {a} multiplied by {b}?",
)
_QUOTIENTS = (
    "What is {a} divided by {b}?",
    "{a} / {b}",
    "{a} : {b}",
    "How much is {a} divided by {b}?",
    "Divide {a} by {b}.",
    "What's {a} / {b}?",
    "{a} divided by {b}?",
    "What is {a} over {b}?",
)
_NEXT = ("What comes after {a}?", "What is the number after {a}?", "Which number comes after {a}?", "Next after {a}?")
_BEFORE = ("What comes before {a}?", "What is the number before {a}?", "Which number comes before {a}?")
_TABLE = 10


def _number(rng: random.Random) -> int:
    """A number below 1000, of any length."""
    return rng.randint(0, rng.choice((9, 99, 999, 999, 999)))


def three_digits(rng: random.Random, held_out: bool) -> Dialogue:
    """Sums and differences of numbers up to 999."""
    plus = rng.random() < 0.5

    def make(rng: random.Random) -> tuple[int, int]:
        a, b = rng.randint(100, 999), _number(rng)
        if rng.random() < 0.15:  # round numbers and carries
            a, b = rng.choice(((round(a, -1), round(b, -1)), (round(a, -2), b), (999 - rng.randint(0, 5), b % 10)))
        if plus:
            return (a, b) if rng.random() < 0.5 else (b, a)
        return max(a, b), min(a, b)

    a, b = draw(rng, held_out, make, lambda pair: ("arithmetic", plus, pair))
    templates = (*SUMS, *_MORE_SUMS) if plus else DIFFERENCES
    return Dialogue((Turn(ask(rng, templates, a=a, b=b), str(a + b if plus else a - b)),))


def word_problem(rng: random.Random, held_out: bool) -> Dialogue:
    """A sum told as a story of apples."""
    plus = rng.random() < 0.5

    def make(rng: random.Random) -> tuple[int, int]:
        a, b = rng.randint(1, 50), rng.randint(1, 49)
        return (a, b) if plus else (max(a, b), min(a, b))

    a, b = draw(rng, held_out, make, lambda pair: ("arithmetic", plus, pair))
    things, others = rng.sample(_THINGS, 2)
    text = rng.choice(_GAINS if plus else _LOSSES).format(a=a, b=b, things=things, others=others, n=rng.choice(NAMES))
    return Dialogue((Turn(text, str(a + b if plus else a - b)),))


def small_numbers(rng: random.Random) -> Turn:
    """A product of the table, a quotient that is whole, two short numbers, or a number's neighbour."""
    kind = rng.random()
    a, b = rng.randint(0, _TABLE), rng.randint(1, _TABLE)
    if kind < 0.4:
        return Turn(rng.choice(_PRODUCTS).format(a=a, b=b), str(a * b))
    if kind < 0.65:
        return Turn(rng.choice(_QUOTIENTS).format(a=a * b, b=b), str(a))
    number = rng.randint(1, 999)
    if kind < 0.85:
        return Turn(rng.choice(_NEXT).format(a=number), str(number + 1))
    return Turn(rng.choice(_BEFORE).format(a=number), str(number - 1))
