"""Train the tiny RWKV-6 of the tests, and write it as safetensors, f16. Takes a few minutes of one core.

    python -m tools.small_v6 tests/versions/skills_v6.safetensors

Needs torch, in the environment of the demo model (tools/demo_model/environment.sh).
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.byte_tokenizer import ByteTokenizer
from tools.demo_model.batches import document, pack
from tools.demo_model.model import Sizes, shipped_tensors
from tools.demo_model.optimizer import optimizers, set_progress
from tools.small_v6.model import ModelV6
from tools.small_v6.skills import dialogues

ROWS, LENGTH = 16, 128
WARM_UP = 50  # steps


def train(model: ModelV6, steps: int) -> None:
    """Train for `steps` optimiser steps. The learning rate falls to zero over the last half of them."""
    made = optimizers(model)
    encode, initial, begun = ByteTokenizer().encode, model.initial_state(), time.monotonic()
    batches = pack((document(dialogue, encode) for dialogue in dialogues(0)), ROWS, LENGTH)
    for step, rows in enumerate(itertools.islice(batches, steps)):
        loss = model.loss(rows, initial) / rows.num_learnt
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        set_progress(made, min(1.0, (step + 1) / WARM_UP, 2 * (1 - step / steps)))
        for optimizer in made:
            optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}, loss {loss.item():.4f}, {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the .safetensors file to write")
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ModelV6(Sizes(vocab=ByteTokenizer().size, width=80, layers=2, head=16, ffn=192, rank=8))
    train(model, options.steps)
    save_file(shipped_tensors(model), options.output, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
