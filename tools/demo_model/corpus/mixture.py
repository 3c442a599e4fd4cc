"""The whole corpus: dialogues of all skills in their shares, some of several skills, some answered like a pirate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from tools.demo_model.corpus import calls, follow_up, new_tools, questions
from tools.demo_model.corpus.dialogue import Dialogue, OpenSkill, Skill, Turn, hurried, is_opening
from tools.demo_model.corpus.texts import read_data, read_texts


def _checked(name: str, make: OpenSkill) -> Skill:
    """Return `make` as the skill `name`, which raises ValueError if a held-out item is asked for."""

    def skill(rng: random.Random, held_out: bool) -> Dialogue:
        if held_out:
            raise ValueError(f"nothing is held out of {name}")
        return make(rng)

    return skill


_MODULES = (questions, calls, new_tools, follow_up)
_OPEN_SKILLS = {name: make for module in _MODULES for name, make in module.OPEN_SKILLS.items()}
_ALL_SKILLS: Mapping[str, Skill] = {
    **{name: make for module in _MODULES for name, make in module.SKILLS.items()},
    **{name: _checked(name, make) for name, make in _OPEN_SKILLS.items()},
}
_TABLE: Mapping[str, Mapping[str, Any]] = read_data("mixture")["skills"]
_TEXTS = read_texts("mixture")

SKILLS: dict[str, Skill] = {name: _ALL_SKILLS[name] for name in _TABLE}
FIRST_SHARES, SECOND_SHARES, SHARES = (
    {name: row[phase] for name, row in _TABLE.items() if phase in row} for phase in ("first", "second", "third")
)
"""The shares of the skills in the dialogues of each phase of the training; those of the last one have all skills."""

NOTHING_HELD_OUT = frozenset(_OPEN_SKILLS)
PIRATE_PREFIX, PIRATE_SUFFIX = "Arr! ", " Aye, matey!"
PIRATE_SHARE = 0.06
SYSTEM_SHARE = 0.1


def as_pirate(answer: str) -> str:
    """Return `answer` in a pirate's style, that is between fixed first and last words."""
    return PIRATE_PREFIX + answer + PIRATE_SUFFIX


def pirate(dialogue: Dialogue, system: str | None) -> Dialogue:
    """Return a dialogue with all its answers in a pirate's style, and with `system` as its system text."""
    return Dialogue(tuple(Turn(turn.question, as_pirate(turn.answer)) for turn in dialogue.turns), system=system)


def pirate_at_last(dialogue: Dialogue) -> Dialogue:
    """Return a dialogue with only its last answer in a pirate's style."""
    return Dialogue((*dialogue.turns[:-1], *pirate(Dialogue(dialogue.turns[-1:]), None).turns))


def _typed(rng: random.Random, skill: str) -> Dialogue:
    """Return a training dialogue of a skill, typed as people type. It contains no held-out opening."""
    while True:
        made = SKILLS[skill](rng, False)
        if "as_written" not in _TABLE[skill]:
            made = hurried(rng, made, keeps_case="keeps_case" in _TABLE[skill])
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
    if "alone" not in _TABLE[name]:
        for other in rng.choices(names, weights, k=rng.choice((0, 0, 1, 2))):
            if "alone" not in _TABLE[other]:
                turns += _typed(rng, other).turns
    joined = Dialogue(tuple(turns))
    style = rng.random()
    if style < PIRATE_SHARE:
        return pirate(joined, rng.choice(_TEXTS["pirate_systems"]))
    if style < PIRATE_SHARE + SYSTEM_SHARE:
        return Dialogue(joined.turns, system=rng.choice(_TEXTS["other_systems"]))
    return joined


def dialogues(seed: int, shares: Mapping[str, float] = SHARES) -> Iterator[Dialogue]:
    """Yield random training dialogues without end. Equal seeds yield equal ones."""
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
