"""State tuning: train only the state before the first token, so that the model talks like a pirate.

    python -m tools.demo_model.tune_state build/demo-model/checkpoint.pt pirate.safetensors --steps 600

With --start, the training goes on from an earlier state, such as one for the model before its last steps.
The file holds `blocks.N.att.time_state` [H, key, value] f32, the order that engines expect in .st files.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "2")  # before torch is imported

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model.batches import Document, Encode, document, pack, plain_encoder
from tools.demo_model.corpus.dialogue import Dialogue
from tools.demo_model.corpus.mixture import dialogues, pirate, pirate_at_last
from tools.demo_model.model import Model, load_model

ROWS, LENGTH = 8, 192
SEED = 2_000_003
RATE = 0.1
_NAME = "blocks.{}.att.time_state"


def plain_dialogues(seed: int) -> Iterator[Dialogue]:
    """Yield training dialogues that have no system text, no JSON answers and no pirate's answers."""
    for plain in dialogues(seed):
        if plain.system is None and not any(turn.answer.startswith(("Arr!", "{")) for turn in plain.turns):
            yield plain


def pirate_documents(seed: int, encode: Encode) -> Iterator[Document]:
    """Yield dialogues as documents with answers in a pirate's style, although no text asks for that style.

    Every other dialogue of several turns has plain answers before the last, and only the last is learnt: the style must
    not depend on the style of earlier answers.
    """
    changing = itertools.cycle((False, True))
    for plain in plain_dialogues(seed):
        if len(plain.turns) > 1 and next(changing):
            yield last_learnt(pirate_at_last(plain), encode)
        else:
            yield document(pirate(plain, None), encode)


def last_learnt(dialogue: Dialogue, encode: Encode) -> Document:
    """Return the document of a dialogue. Only its last answer is flagged to be learnt."""
    tokens = document(dialogue, encode).tokens
    known = sum(len(encode(text)) for text, _ in dialogue.parts()[:-1])
    return Document(tokens, [position >= known for position in range(len(tokens))])


def tune(model: Model, tokenizer: Tokenizer, start: Tensor, steps: int) -> Tensor:
    """Return a trained initial state [L, H, value, key], from which `model` answers like a pirate.

    The training begins with `start`, of the same shape.
    """
    model.requires_grad_(False)
    encode = plain_encoder(tokenizer)
    initial = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([initial], lr=RATE, betas=(0.9, 0.98))
    for step, rows in enumerate(itertools.islice(pack(pirate_documents(SEED, encode), ROWS, LENGTH), steps)):
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, 2 * (steps - step) / steps)
        loss = model.loss(rows, initial) / rows.num_learnt
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    return initial.detach()


def read_tuned(path: Path) -> Tensor:
    """Return the state of a file that this tool wrote. [L, H, value, key]"""
    tensors = load_file(path)
    return torch.stack([tensors[_NAME.format(layer)].transpose(1, 2) for layer in range(len(tensors))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint, with tokenizer.json in the same folder")
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--start", type=Path, help="a tuned state to start from, in place of zeros")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.checkpoint.with_name("tokenizer.json")))
    model = load_model(options.checkpoint)
    start = model.initial_state() if options.start is None else read_tuned(options.start)
    state = tune(model, tokenizer, start, options.steps)
    tensors = {_NAME.format(layer): value.transpose(1, 2).contiguous() for layer, value in enumerate(state)}
    save_file(tensors, options.output, metadata={"time_state_layout": "key_value"})
    print(f"{options.output.stat().st_size} bytes -> {options.output}")


if __name__ == "__main__":
    main()
