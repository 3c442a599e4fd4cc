"""`python -m tools.golden.tuned_states`: check that a tuned state means the same here and in BlinkDL's package `rwkv`.

It has two parts, for a small random model of each version. `Tuner` tunes a state, which is written as a .pth file and
read by the package. And torch tunes a state, which is written as RWKV-PEFT does and read here. Each time both compute
the logits of the same text from the same file. It needs the packages of requirements.txt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from rnn_engine import Model, Tuner, TunerSettings
from rnn_engine.types import F32, ModelShape
from tests.support.models import random_model, save_safetensors, tiny_shape
from tests.support.older_models import tiny_v5, tiny_v6
from tools.golden.autograd import gradients
from tools.golden.oracle import run

_VOCAB: Final = 65536  # World's, so that the model has a tokenizer
_SHAPES: Final = (
    *(tiny_v5(version, vocab=_VOCAB) for version in ("v5.0", "v5.1", "v5.2")),
    tiny_v6(vocab=_VOCAB),
    tiny_shape(vocab=_VOCAB),
)
_TEXT: Final = "Arr! The wind is fair, the rum is cold, and the captain sails at dawn. Aye, matey!"
_UPDATES: Final = 8
_MOST_ERROR: Final = 1e-5  # of the greatest logit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.golden.tuned_states", description=__doc__)
    parser.add_argument("--device", default="auto", help="the device that tunes and runs here [default: auto]")
    device = parser.parse_args().device
    for shape in _SHAPES:
        with TemporaryDirectory() as name:
            _check(shape, device, Path(name))


def _check(shape: ModelShape, device: str, folder: Path) -> None:
    """Compare the logits from a state that was tuned here, and from one that torch has tuned."""
    weights = random_model(shape, 5, np.float16, bits=11)
    model_path = save_safetensors(weights, folder / "model.safetensors", "f16")
    here, there = folder / "here.pth", folder / "there.pth"
    _tune_here(model_path, device, here)
    with Model(model_path, device=device) as model:
        tokens = model.tokenize(_TEXT)
        _tune_with_torch(weights.tensors, shape, tokens, there)
        untuned, _ = model.forward(tokens, all_logits=True)
        for what, path in (("tuned here", here), ("tuned with torch", there)):
            ours, _ = model.forward(tokens, model.load_state(path), all_logits=True)
            package, _ = run(model_path, shape.version, tokens, tuned_state=path)
            error = _difference(ours, package)
            print(
                f"{shape.version}, {what}: logits {error:.1e} (relative); {_difference(untuned, package):.1e} untuned"
            )
            if not error < _MOST_ERROR:
                sys.exit(f"{shape.version}, {what}: the logits differ")


def _tune_here(model_path: Path, device: str, output: Path) -> None:
    data = output.with_suffix(".jsonl")
    data.write_text("".join(json.dumps({"text": f"{_TEXT} {number}"}) + "\n" for number in range(8)))
    settings = TunerSettings(steps=_UPDATES, rate=0.3, warm_up=1)
    with Tuner(data, model_path, settings, held_out=0.25, max_tokens=100, device=device) as tuner:
        tuner.run()
        tuner.save(output)


def _tune_with_torch(
    weights: dict[str, NDArray[np.generic]], shape: ModelShape, tokens: Sequence[int], output: Path
) -> None:
    """Tune the matrices of an empty state, and write them as RWKV-PEFT does: [H, value, key], in bf16."""
    state: dict[str, F32] = dict(shape.initial_state())
    for _ in range(_UPDATES):
        _, gradient = gradients(weights, shape.version, tokens, state)
        state["wkv"] -= 0.3 * gradient["wkv"] / np.abs(gradient["wkv"]).max()
    torch.save(
        {f"blocks.{layer}.att.time_state": torch.from_numpy(wkv).bfloat16() for layer, wkv in enumerate(state["wkv"])},
        output,
    )


def _difference(logits: F32, expected: F32) -> float:
    return float(np.abs(logits - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    main()
