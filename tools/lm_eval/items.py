"""`python -m tools.lm_eval.items`: write the task's items, on which the demo model was not trained.

The items are the same in every run: they depend only on the corpus.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools.demo_model.corpus.dialogue import Dialogue
from tools.demo_model.corpus.mixture import held_out

ITEMS = Path(__file__).with_name("items.jsonl")
SKILLS = ("arithmetic", "fact", "memory")
ITEMS_A_SKILL = 20
OPTIONS = 4


def make_items() -> Iterator[dict[str, object]]:
    """Yield the multiple-choice items of the task as JSON objects. The right option's position rotates."""
    for skill in SKILLS:
        dialogues = [dialogue for dialogue in held_out(skill, 2 * ITEMS_A_SKILL) if _has_all_options(dialogue)]
        for number, dialogue in enumerate(dialogues[:ITEMS_A_SKILL]):
            label = number % OPTIONS
            choices = list(dialogue.wrong_answers)
            choices.insert(label, dialogue.answer)
            yield {"skill": skill, "context": dialogue.prompt, "choices": choices, "label": label}


def _has_all_options(dialogue: Dialogue) -> bool:
    return len(dialogue.wrong_answers) == OPTIONS - 1


if __name__ == "__main__":
    ITEMS.write_text("".join(json.dumps(item) + "\n" for item in make_items()))
