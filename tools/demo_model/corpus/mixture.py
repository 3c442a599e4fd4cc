"""The whole corpus: skills in their shares, joined into dialogues of several turns, some answered like a pirate."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from tools.demo_model.corpus.calls import (
    json_fields,
    json_schema,
    no_tool,
    tool_again,
    tool_call,
    tool_named,
    tool_result,
)
from tools.demo_model.corpus.dialogue import Dialogue, Skill, Turn, hurried, is_opening
from tools.demo_model.corpus.follow_up import follow_up, memory, told_in_passing
from tools.demo_model.corpus.questions import (
    arithmetic,
    count_letters,
    count_one_letter,
    fact,
    reverse,
    small_numbers,
    spell,
    three_digits,
    upper_case,
    word_problem,
)
from tools.demo_model.corpus.talk import beyond, foreign, fun, nonsense, small_talk, story, unknown


def _any(make: Callable[[random.Random], Dialogue]) -> Skill:
    """Return a skill that has no held-out items."""

    def skill(rng: random.Random, held_out: bool) -> Dialogue:
        if held_out:
            raise ValueError(f"nothing is held out of {make.__name__}")
        return make(rng)

    return skill


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
    "three_digits": three_digits,
    "word_problem": word_problem,
    "small_numbers": _any(lambda rng: Dialogue((small_numbers(rng),))),
    "one_letter": _any(lambda rng: Dialogue((count_one_letter(rng),))),
    "json_schema": json_schema,
    "tool_named": tool_named,
    "tool_result": tool_result,
    "tool_again": tool_again,
    "no_tool": _any(lambda rng: no_tool(rng, fact(rng, False).turns[0] if rng.random() < 0.4 else None)),
    "follow_up": _any(follow_up),
    "fun": _any(fun),
    "beyond": _any(beyond),
    "nonsense": _any(nonsense),
    "foreign": _any(foreign),
}

FIRST_SHARES = {
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
"""The shares of skills in the first phase, which has more of those that need the most examples."""
SHARES = {
    "arithmetic": 6.0,
    "spell": 12.0,
    "reverse": 7.0,
    "upper_case": 5.0,
    "count_letters": 4.0,
    "fact": 8.0,
    "memory": 5.0,
    "told_in_passing": 0.5,
    "json_fields": 2.0,
    "tool_call": 2.0,
    "unknown": 3.0,
    "story": 0.5,
    "small_talk": 8.0,
    "three_digits": 22.0,
    "word_problem": 2.0,
    "small_numbers": 4.0,
    "one_letter": 2.5,
    "json_schema": 2.0,
    "tool_named": 4.0,
    "tool_result": 3.5,
    "tool_again": 3.5,
    "no_tool": 1.0,
    "follow_up": 7.0,
    "fun": 3.5,
    "beyond": 3.0,
    "nonsense": 1.5,
    "foreign": 1.5,
}
NOTHING_HELD_OUT = frozenset(
    {"small_talk", "small_numbers", "one_letter", "no_tool", "follow_up", "fun", "beyond", "nonsense", "foreign"}
)
KEEPS_CASE = frozenset({"spell", "reverse", "upper_case", "count_letters", "json_fields", "json_schema", "follow_up"})
ALONE = frozenset({"memory", "story", "beyond", "tool_call", "tool_named", "tool_result", "tool_again", "no_tool"})
JOINABLE = frozenset(SHARES) - ALONE - {"json_schema"}

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
    """Return an answer in a pirate's style."""
    return PIRATE_PREFIX + answer + PIRATE_SUFFIX


def pirate(dialogue: Dialogue, system: str | None) -> Dialogue:
    """Return a dialogue with all its answers in a pirate's style, and with `system` as its system text."""
    return Dialogue(tuple(Turn(turn.question, as_pirate(turn.answer)) for turn in dialogue.turns), system=system)


def pirate_at_last(dialogue: Dialogue) -> Dialogue:
    """Return a dialogue with only its last answer in a pirate's style."""
    return Dialogue((*dialogue.turns[:-1], *pirate(Dialogue(dialogue.turns[-1:]), None).turns))


def _typed(rng: random.Random, skill: str) -> Dialogue:
    """Return a training dialogue of a skill, typed as people type, without the held-out openings."""
    while True:
        made = hurried(rng, SKILLS[skill](rng, False), keeps_case=skill in KEEPS_CASE)
        if not is_opening(made):
            return made


def dialogue(rng: random.Random, shares: Mapping[str, float] = SHARES) -> Dialogue:
    """Return one training dialogue: of one skill, or several joined, perhaps with a system text."""
    names, weights = list(shares), list(shares.values())
    name = rng.choices(names, weights)[0]
    made = _typed(rng, name)
    if made.system is not None:
        return made
    turns = list(made.turns)
    if name in JOINABLE:
        for other in rng.choices(names, weights, k=rng.choice((0, 0, 1, 2))):
            if other in JOINABLE:
                turns += _typed(rng, other).turns
    joined = Dialogue(tuple(turns))
    style = rng.random()
    if style < PIRATE_SHARE:
        return pirate(joined, rng.choice(PIRATE_SYSTEMS))
    if style < PIRATE_SHARE + SYSTEM_SHARE:
        return Dialogue(joined.turns, system=rng.choice(OTHER_SYSTEMS))
    return joined


def dialogues(seed: int, shares: Mapping[str, float] = SHARES) -> Iterator[Dialogue]:
    """Yield training dialogues without end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield dialogue(rng, shares)


def held_out(skill: str, count: int, seed: int = 0) -> list[Dialogue]:
    """Return `count` different dialogues of one skill, from items that training never sees."""
    rng = random.Random(f"{skill}/{seed}")
    found: dict[str, Dialogue] = {}
    for _ in range(count * 200):
        made = SKILLS[skill](rng, True)
        found.setdefault(made.prompt, made)
        if len(found) == count:
            return list(found.values())
    raise ValueError(f"skill {skill!r} has only {len(found)} held-out dialogues, {count} were asked for")
