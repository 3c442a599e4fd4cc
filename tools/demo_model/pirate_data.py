"""Write dialogues with a pirate's answers as training data, from which `rnn-engine tune-state` makes the pirate.

    python -m tools.demo_model.pirate_data build/pirate.jsonl --count 2000

No text asks for the style. Every other dialogue of several turns has plain answers before the last, and only the last
is learnt: the style must not depend on the style of earlier answers.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from tools.demo_model.corpus.dialogue import Dialogue
from tools.demo_model.corpus.mixture import dialogues, pirate, pirate_at_last

SEED = 2_000_003


def plain_dialogues(seed: int) -> Iterator[Dialogue]:
    """Yield training dialogues that have no system text, no JSON answers and no pirate's answers."""
    for plain in dialogues(seed):
        if plain.system is None and not any(turn.answer.startswith(("Arr!", "{")) for turn in plain.turns):
            yield plain


def records(seed: int) -> Iterator[dict[str, object]]:
    """Yield dialogues with a pirate's answers, in the form of OpenAI's fine-tuning."""
    changing = itertools.cycle((False, True))
    for plain in plain_dialogues(seed):
        if len(plain.turns) > 1 and next(changing):
            yield {"messages": messages(pirate_at_last(plain), only_last=True)}
        else:
            yield {"messages": messages(pirate(plain, None), only_last=False)}


def messages(dialogue: Dialogue, *, only_last: bool) -> list[dict[str, object]]:
    """Return the messages of a dialogue; with `only_last`, only its last answer is learnt."""
    before = dialogue.messages()
    known = {"weight": 0} if only_last else {}
    return [
        *({**message, **(known if message["role"] == "assistant" else {})} for message in before),
        {"role": "assistant", "content": dialogue.answer},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="the number of dialogues")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    with options.output.open("w", encoding="utf-8") as file:
        for record in itertools.islice(records(options.seed), options.count):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
