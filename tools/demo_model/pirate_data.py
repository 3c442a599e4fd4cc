"""Write dialogues with a pirate's answers as training data, from which `rnn-engine tune-state` makes the pirate.

    python -m tools.demo_model.pirate_data build/pirate.jsonl

No text asks for the style. Every other dialogue of several turns has plain answers before the last, and only the last
is learnt: the style must not depend on the style of earlier answers.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.demo_model.corpus.dialogue import Dialogue
from tools.demo_model.corpus.mixture import dialogues, pirate, pirate_at_last

SEED, COUNT = 2_000_003, 2000


def records(seed: int) -> Iterator[dict[str, object]]:
    """Yield dialogues with a pirate's answers, in the form of OpenAI's fine-tuning.

    They are made of training dialogues that have no system text, no JSON answers and no pirate's answers.
    """
    changing = itertools.cycle((False, True))
    for plain in dialogues(seed):
        if plain.system is not None or any(turn.answer.startswith(("Arr!", "{")) for turn in plain.turns):
            continue
        if len(plain.turns) > 1 and next(changing):
            yield {"messages": messages(pirate_at_last(plain), {"weight": 0})}
        else:
            yield {"messages": messages(pirate(plain, None), {})}


def messages(dialogue: Dialogue, known: dict[str, object]) -> list[dict[str, object]]:
    """Return the messages of a dialogue. The answers before the last one get the fields `known`."""
    return [
        *({**message, **(known if message["role"] == "assistant" else {})} for message in dialogue.messages()),
        {"role": "assistant", "content": dialogue.answer},
    ]


if __name__ == "__main__":
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records(SEED))
    Path(sys.argv[1]).write_text("".join(itertools.islice(lines, COUNT)), "utf-8")
