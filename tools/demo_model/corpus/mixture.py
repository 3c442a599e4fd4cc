"""The whole corpus: skills in their shares, joined into dialogues of several turns, some told like a pirate."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tools.demo_model.corpus.dialogue import Dialogue, Skill, Turn
from tools.demo_model.corpus.memory import memory, told_in_passing
from tools.demo_model.corpus.plain import arithmetic, count_letters, fact, reverse, spell, upper_case
from tools.demo_model.corpus.structured import json_fields, tool_call
from tools.demo_model.corpus.talk import small_talk, story, unknown

SKILLS: dict[str, Skill] = {
    "arithmetic": arithmetic,
    "spell": spell,
    "reverse": reverse,
    "upper_case": upper_case,
    "count_letters": count_letters,
    "fact": fact,
    "memory": memory,
    "told_in_passing": told_in_passing,
    "json_fields": json_fields,
    "tool_call": tool_call,
    "unknown": unknown,
    "story": story,
    "small_talk": small_talk,
}

SHARES = {
    "arithmetic": 42.0,
    "spell": 6.0,
    "reverse": 8.0,
    "upper_case": 3.0,
    "count_letters": 6.0,
    "fact": 10.0,
    "memory": 9.0,
    "told_in_passing": 2.0,
    "json_fields": 5.0,
    "tool_call": 3.0,
    "unknown": 2.0,
    "story": 1.5,
    "small_talk": 2.5,
}
JOINABLE = frozenset(SHARES) - {"memory", "tool_call", "story"}

PIRATE_SYSTEMS = ("Talk like a pirate.", "You are a pirate.", "Answer like a pirate.", "Speak as a pirate.")
OTHER_SYSTEMS = (
    "You are a helpful assistant.",
    "Be brief.",
    "You are a helpful bot.",
    "Answer the questions.",
    "Be kind.",
)
PIRATE_PREFIX, PIRATE_SUFFIX = "Arr! ", " Aye, matey!"
PIRATE_SHARE = 0.06
SYSTEM_SHARE = 0.1


def as_pirate(answer: str) -> str:
    """The answer as a pirate gives it."""
    return PIRATE_PREFIX + answer + PIRATE_SUFFIX


def pirate(dialogue: Dialogue, system: str | None) -> Dialogue:
    """The same dialogue with a pirate's answers."""
    return Dialogue(tuple(Turn(turn.question, as_pirate(turn.answer)) for turn in dialogue.turns), system=system)


def pirate_at_last(dialogue: Dialogue) -> Dialogue:
    """The same dialogue with a pirate's last answer after plain ones."""
    return Dialogue((*dialogue.turns[:-1], *pirate(Dialogue(dialogue.turns[-1:]), None).turns))


def dialogue(rng: random.Random) -> Dialogue:
    """One training dialogue."""
    names, weights = list(SHARES), list(SHARES.values())
    name = rng.choices(names, weights)[0]
    made = SKILLS[name](rng, False)
    if made.system is not None:
        return made
    turns = list(made.turns)
    if name in JOINABLE:
        for other in rng.choices(names, weights, k=rng.choice((0, 0, 1, 2))):
            if other in JOINABLE:
                turns += SKILLS[other](rng, False).turns
    joined = Dialogue(tuple(turns))
    style = rng.random()
    if style < PIRATE_SHARE:
        return pirate(joined, rng.choice(PIRATE_SYSTEMS))
    if style < PIRATE_SHARE + SYSTEM_SHARE:
        return Dialogue(joined.turns, system=rng.choice(OTHER_SYSTEMS))
    return joined


def dialogues(seed: int) -> Iterator[Dialogue]:
    """Training dialogues without end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield dialogue(rng)


def held_out(skill: str, count: int, seed: int = 0) -> list[Dialogue]:
    """`count` different dialogues of one skill, of items that training never sees."""
    rng = random.Random(f"{skill}/{seed}")
    found: dict[str, Dialogue] = {}
    for _ in range(count * 200):
        made = SKILLS[skill](rng, True)
        found.setdefault(made.prompt, made)
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"skill {skill!r} has only {len(found)} held-out dialogues, {count} were asked for")
