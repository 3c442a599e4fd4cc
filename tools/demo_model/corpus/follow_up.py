"""The skills of several turns: recalling what the user said, and questions that refer to an earlier answer.

Combinations of values are held out of the memory skill.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tools.demo_model.corpus.dialogue import Dialogue, OpenSkill, Skill, Turn, ask, is_held_out
from tools.demo_model.corpus.questions import arithmetic, fact, spell
from tools.demo_model.corpus.texts import (
    CAPITALS,
    CITIES,
    COLOURS,
    CONTINENTS,
    NAMES,
    RELATIONS,
    UNSEEN_WORDINGS,
    Relation,
    items,
    listed,
    read_data,
    read_texts,
    some_name,
)

TEXTS = read_texts("memory")
_COLOURS = tuple(sorted(set(COLOURS.pairs.values())))
_VALUES: Mapping[str, Callable[[random.Random], str]] = {
    "name": some_name,
    "city": lambda rng: rng.choice(CITIES),
    "number": lambda rng: str(rng.randint(1, 99)),
    "colour": lambda rng: rng.choice(_COLOURS),
    "food": lambda rng: rng.choice(TEXTS["foods"]),
    "job": lambda rng: rng.choice(TEXTS["jobs"]),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of fact that users mention about themselves: templates of statement, reply, later question and answer."""

    value: Callable[[random.Random], str]
    told: tuple[str, ...]
    reply: str
    asked: tuple[str, ...]
    answer: str


def _topic(table: Mapping[str, str]) -> Topic:
    lists = {name: items(table[name]) for name in ("told", "asked")}
    return Topic(value=_VALUES[table["value"]], reply=table["reply"], answer=table["answer"], **lists)


TOPICS = tuple(map(_topic, read_data("memory")["topics"]))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def memory(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue in which the user states facts and later asks for some, perhaps after another question."""
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


def told_in_passing(rng: random.Random, held_out: bool) -> Dialogue:
    """Return a dialogue such as "Ann's hat is red. Bob's hat is blue. What colour is Bob's hat?" with its answer."""
    while True:
        first, second = rng.sample(NAMES, 2)
        thing, (one, two) = rng.choice(TEXTS["things"]), rng.sample(_COLOURS, 2)
        if is_held_out("passing", first, second, thing) == held_out:
            break
    told = " ".join(
        rng.choice(TEXTS["stored"]).format(name=name, thing=thing, x=x) for name, x in ((first, one), (second, two))
    )
    name, x = rng.choice(((first, one), (second, two)))
    question = f"{told} {rng.choice(TEXTS['stored_asked']).format(name=name, thing=thing)}"
    wrong = tuple(f"{name}'s {thing} is {other}." for other in rng.sample([c for c in _COLOURS if c != x], 3))
    return Dialogue((Turn(question, f"{name}'s {thing} is {x}."),), wrong_answers=wrong)


CLAIMS = {name: listed(texts) for name, texts in read_data("memory")["claims"].items()}
_ASKED_AFTER = tuple(read_data("memory")["asked_after"].items())


def _ask(rng: random.Random, relation: Relation, subject: str) -> Turn:
    question = rng.choice(relation.wordings[UNSEEN_WORDINGS:]).format(subject=subject)
    return Turn(question, relation.says(subject))


def _claim(rng: random.Random) -> list[Turn]:
    """Return one turn: the user claims a fact, and the model confirms or corrects it."""
    relation = rng.choice([relation for relation in RELATIONS if relation.name in CLAIMS])
    subject = rng.choice(sorted(relation.pairs))
    right = relation.pairs[subject]
    claimed = right if rng.random() < 0.5 else rng.choice(sorted(relation.pairs.values()))
    answer = relation.says(subject)
    if not answer.startswith(subject):
        answer = answer[0].lower() + answer[1:]
    question = rng.choice(CLAIMS[relation.name]).format(s=subject, o=claimed)
    return [Turn(question, f"{'Yes' if claimed == right else 'No'}, {answer}")]


def _facts(rng: random.Random) -> list[Turn]:
    """Return turns that ask for a fact, and then, in short questions, for the same about other subjects."""
    relation = rng.choices(RELATIONS, [len(relation.pairs) for relation in RELATIONS])[0]
    subjects = rng.sample(sorted(relation.pairs), rng.choice((2, 2, 3)))
    turns = [_ask(rng, relation, subjects[0])]
    forms = TEXTS["and_a"] if relation.name in ("sound", "baby", "legs") else TEXTS["and"]
    for subject in subjects[1:]:
        turns.append(Turn(rng.choice(forms).format(s=subject), _ask(rng, relation, subject).answer))
    return turns


def _doubt(rng: random.Random) -> list[Turn]:
    relation = rng.choice(RELATIONS)
    first = _ask(rng, relation, rng.choice(sorted(relation.pairs)))
    if rng.random() < 0.4:
        return [first, Turn(rng.choice(TEXTS["thanked"]), "You are welcome!")]
    return [first, Turn(rng.choice(TEXTS["sure"]), f"Yes, I am sure. {first.answer}")]


def _whereabouts(rng: random.Random) -> list[Turn]:
    country = rng.choice(sorted(CAPITALS.pairs.keys() & CONTINENTS.pairs.keys()))
    return [_ask(rng, CAPITALS, country), Turn(rng.choice(TEXTS["where"]), CONTINENTS.says(country))]


def _running_sum(rng: random.Random) -> list[Turn]:
    a, b, c = rng.randint(1, 60), rng.randint(1, 39), rng.randint(1, 40)
    total = a + b
    asked = rng.choice(("What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "How much is {a} plus {b}?", "Add {a} and {b}."))
    turns = [Turn(asked.format(a=a, b=b), str(total))]
    kind, c, result = ("plus", c, total + c) if rng.random() < 0.5 else ("minus", min(c, total), max(total - c, 0))
    return [*turns, Turn(rng.choice(TEXTS[kind]).format(b=c), str(result))]


def _reversed(rng: random.Random) -> list[Turn]:
    while len(letters := (turn := spell(rng, False).turns[0]).answer.replace("-", "")) > 7 or letters in NAMES:
        pass
    return [turn, Turn(rng.choice(TEXTS["backwards"]), letters[::-1])]


def _two_in_one(rng: random.Random) -> list[Turn]:
    """Return turns: one message with the user's name and city, then questions about one or both of them."""
    name, city = rng.choice(NAMES), rng.choice(sorted(CAPITALS.pairs.values()))
    told, reply = rng.choice(TEXTS["telling"]), TEXTS["telling_reply"][0]
    turns = [Turn(told.format(n=name, c=city), reply.format(n=name, c=city))]
    for asked, answer in rng.sample(_ASKED_AFTER, rng.choice((1, 2))):
        turns.append(Turn(asked, answer.format(n=name, c=city)))
    return turns


def follow_up(rng: random.Random) -> Dialogue:
    """Return a dialogue of two or more turns, in which a later question refers to an earlier turn."""
    kinds = (_facts, _claim, _doubt, _whereabouts, _running_sum, _reversed, _two_in_one)
    return Dialogue(tuple(rng.choices(kinds, (6, 2, 2, 1.5, 5, 2, 2))[0](rng)))


SKILLS: Mapping[str, Skill] = {"memory": memory, "told_in_passing": told_in_passing}
OPEN_SKILLS: Mapping[str, OpenSkill] = {"follow_up": follow_up}
