"""Questions that only make sense after the one before."""

from __future__ import annotations

import random

from tools.demo_model.corpus.dialogue import Dialogue, Turn
from tools.demo_model.corpus.facts import CAPITALS, CONTINENTS, RELATIONS, UNSEEN_WORDINGS, Relation
from tools.demo_model.corpus.plain import spell
from tools.demo_model.corpus.words import NAMES

_AND = ("And of {s}?", "And {s}?", "What about {s}?", "And what about {s}?", "{s}?", "How about {s}?", "And for {s}?")
_AND_A = ("And a {s}?", "And the {s}?", "What about a {s}?", "And {s}?", "How about a {s}?", "And what about the {s}?")
_SURE = (
    "Are you sure?",
    "Really?",
    "Is that right?",
    "Is that true?",
    "Are you certain?",
    "You sure?",
    "Is this correct?",
)
_WHERE = (
    "And which continent is that?",
    "What continent is it on?",
    "And where is that?",
    "Which continent is it in?",
    "And on which continent is it?",
    "Where is it?",
    "On what continent is that?",
)
_PLUS = ("Plus {b}", "And plus {b}?", "Add {b}.", "Now add {b}.", "And {b} more?", "Plus {b}?", "+ {b}", "Now plus {b}")
_MINUS = ("Minus {b}", "And minus {b}?", "Take away {b}.", "Now subtract {b}.", "Minus {b}?", "- {b}", "Now minus {b}")
_BACKWARDS = (
    "And backwards?",
    "Now reverse it.",
    "Backwards",
    "Reverse it.",
    "And now backwards?",
    "Backwards, please.",
)
_THANKED = ("Thanks", "Thank you", "Great, thank you", "Thanks!", "Ok, thanks", "Thank you!", "Very good, thanks")


def _ask(rng: random.Random, relation: Relation, subject: str) -> Turn:
    question = rng.choice(relation.wordings[UNSEEN_WORDINGS:]).format(subject=subject)
    return Turn(question, relation.answer.format(subject=subject, object=relation.pairs[subject]))


_CLAIMS = {
    "capital": ("Is {o} the capital of {s}?", "Is the capital of {s} {o}?", "{o} is the capital of {s}, right?"),
    "opposite": ("Is {o} the opposite of {s}?", "Is the opposite of {s} {o}?"),
    "continent": ("Is {s} in {o}?", "Does {s} lie in {o}?", "{s} is in {o}, right?"),
    "legs": ("Does a {s} have {o} legs?", "Has a {s} {o} legs?"),
    "colour": ("Is {s} {o}?", "Is the colour of {s} {o}?"),
}


def _claim(rng: random.Random) -> list[Turn]:
    """A fact to confirm, or to correct."""
    relation = rng.choice([relation for relation in RELATIONS if relation.name in _CLAIMS])
    subject = rng.choice(sorted(relation.pairs))
    right = relation.pairs[subject]
    claimed = right if rng.random() < 0.5 else rng.choice(sorted(relation.pairs.values()))
    answer = relation.answer.format(subject=subject, object=right)
    if not answer.startswith(subject):
        answer = answer[0].lower() + answer[1:]
    question = rng.choice(_CLAIMS[relation.name]).format(s=subject, o=claimed)
    return [Turn(question, f"{'Yes' if claimed == right else 'No'}, {answer}")]


def _facts(rng: random.Random) -> list[Turn]:
    """One fact, then others of its kind."""
    relation = rng.choices(RELATIONS, [len(relation.pairs) for relation in RELATIONS])[0]
    subjects = rng.sample(sorted(relation.pairs), rng.choice((2, 2, 3)))
    turns = [_ask(rng, relation, subjects[0])]
    forms = _AND_A if relation.name in ("sound", "baby", "legs") else _AND
    for subject in subjects[1:]:
        turns.append(Turn(rng.choice(forms).format(s=subject), _ask(rng, relation, subject).answer))
    return turns


def _doubt(rng: random.Random) -> list[Turn]:
    relation = rng.choice(RELATIONS)
    first = _ask(rng, relation, rng.choice(sorted(relation.pairs)))
    if rng.random() < 0.4:
        return [first, Turn(rng.choice(_THANKED), "You are welcome!")]
    return [first, Turn(rng.choice(_SURE), f"Yes, I am sure. {first.answer}")]


def _whereabouts(rng: random.Random) -> list[Turn]:
    country = rng.choice(sorted(CAPITALS.pairs.keys() & CONTINENTS.pairs.keys()))
    second = CONTINENTS.answer.format(subject=country, object=CONTINENTS.pairs[country])
    return [_ask(rng, CAPITALS, country), Turn(rng.choice(_WHERE), second)]


def _running_sum(rng: random.Random) -> list[Turn]:
    a, b, c = rng.randint(1, 60), rng.randint(1, 39), rng.randint(1, 40)
    total = a + b
    asked = rng.choice(("What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "How much is {a} plus {b}?", "Add {a} and {b}."))
    turns = [Turn(asked.format(a=a, b=b), str(total))]
    if rng.random() < 0.5:
        turns.append(Turn(rng.choice(_PLUS).format(b=c), str(total + c)))
    else:
        c = min(c, total)
        turns.append(Turn(rng.choice(_MINUS).format(b=c), str(total - c)))
    return turns


def _reversed(rng: random.Random) -> list[Turn]:
    while len(letters := (turn := spell(rng, False).turns[0]).answer.replace("-", "")) > 7 or letters in NAMES:
        pass
    return [turn, Turn(rng.choice(_BACKWARDS), letters[::-1])]


_SHORT_TELLING = (
    ("My name is {n} and I live in {c}.", "Nice to meet you, {n}! {c} is a nice place."),
    ("I am {n} and I live in {c}.", "Nice to meet you, {n}! {c} is a nice place."),
    ("I'm {n} from {c}.", "Nice to meet you, {n}! {c} is a nice place."),
    ("Hi, my name is {n} and I am from {c}.", "Nice to meet you, {n}! {c} is a nice place."),
)
_ASKED_AFTER = (
    ("What is my name?", "Your name is {n}."),
    ("Who am I?", "Your name is {n}."),
    ("What's my name?", "Your name is {n}."),
    ("Where do I live?", "You live in {c}."),
    ("Where am I from?", "You live in {c}."),
    ("Which city do I live in?", "You live in {c}."),
)


def _two_in_one(rng: random.Random) -> list[Turn]:
    """Two things told in one message."""
    name, city = rng.choice(NAMES), rng.choice(sorted(CAPITALS.pairs.values()))
    told, reply = rng.choice(_SHORT_TELLING)
    turns = [Turn(told.format(n=name, c=city), reply.format(n=name, c=city))]
    for asked, answer in rng.sample(_ASKED_AFTER, rng.choice((1, 2))):
        turns.append(Turn(asked, answer.format(n=name, c=city)))
    return turns


def follow_up(rng: random.Random) -> Dialogue:
    """A question and what follows from it."""
    kinds = (_facts, _claim, _doubt, _whereabouts, _running_sum, _reversed, _two_in_one)
    return Dialogue(tuple(rng.choices(kinds, (6, 2, 2, 1.5, 5, 2, 2))[0](rng)))
