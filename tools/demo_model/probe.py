"""Measure a training checkpoint on held-out items by skill, in one forward pass and without a server.

    python -m tools.demo_model.probe build/demo-model/checkpoint.pt --count 100

An answer is right if each of its tokens, the stop included, is the model's first choice after the tokens before it.
This is so exactly if greedy decoding writes the answer.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model.batches import document, plain_encoder
from tools.demo_model.corpus.dialogue import Dialogue
from tools.demo_model.corpus.mixture import NOTHING_HELD_OUT, SKILLS, held_out
from tools.demo_model.model import Model, load_model

UNGRADED = frozenset({"story", "fun"})  # these have many right answers
ROWS = 50


@torch.no_grad()
def right_answers(
    model: Model, dialogues: Sequence[Dialogue], encode: Callable[[str], list[int]], initial: Tensor
) -> list[bool]:
    """Return a flag for each dialogue: True if the model's likeliest tokens are exactly the last answer."""
    right: list[bool] = []
    for first in range(0, len(dialogues), ROWS):
        group = dialogues[first : first + ROWS]
        docs = [document(dialogue, encode) for dialogue in group]
        length = max(len(doc.tokens) for doc in docs)
        tokens = torch.tensor([doc.tokens + [0] * (length - len(doc.tokens)) for doc in docs])
        starts = torch.zeros(tokens.shape, dtype=torch.uint8)
        starts[:, 0] = 1
        chosen = model.head(model.hidden(tokens, starts, initial)).argmax(-1)
        for row, (dialogue, doc) in enumerate(zip(group, docs, strict=True)):
            count = len(encode(dialogue.parts()[-1][0]))
            span = slice(len(doc.tokens) - count - 1, len(doc.tokens) - 1)
            right.append(chosen[row, span].tolist() == doc.tokens[-count:])
    return right


def skill_dialogues(skill: str, count: int) -> list[Dialogue]:
    """Return `count` held-out dialogues of a skill. If the skill has no held-out items, return training dialogues."""
    if skill not in NOTHING_HELD_OUT:
        return held_out(skill, count)
    rng = random.Random(skill)
    return [SKILLS[skill](rng, False) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, with tokenizer.json in the same folder")
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    model = load_model(options.checkpoint)
    encode = plain_encoder(Tokenizer.from_file(str(options.checkpoint.with_name("tokenizer.json"))))
    for skill in SKILLS:
        if skill not in UNGRADED:
            right = right_answers(model, skill_dialogues(skill, options.count), encode, model.initial_state())
            print(f"{skill:16} {100 * sum(right) / len(right):6.1f} %")


if __name__ == "__main__":
    main()
