"""A third set of labelled sentences: questions such as the demo model was trained on, about items that it never saw."""

from __future__ import annotations

import random

from tools.demo_model.corpus.mixture import SKILLS
from tools.embeddings.sentences import Topics

_LABELS = (
    "arithmetic",
    "spell",
    "reverse",
    "upper_case",
    "count_letters",
    "fact",
    "told_in_passing",
    "json_fields",
    "tool_call",
    "unknown",
    "story",
)


def skill_questions(each: int = 24, seed: int = 1) -> Topics:
    """Return held-out questions by skill, the same at every call."""
    chance = random.Random(seed)
    return {label: tuple(SKILLS[label](chance, True).turns[-1].question for _ in range(each)) for label in _LABELS}
