"""The golden files: small models, and the results of BlinkDL's `rwkv` package with them in f32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rnn_engine.types import F32, I32

FOLDER = Path(__file__).resolve().parents[1] / "golden"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))
ILL_CONDITIONED = "v6-deep-head32-odd-sizes"
"""Its layer 4 norms a vector that is nearly 0: noise of 3e-8 in the weights moves its logits by up to 2e-5."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A model file with a token sequence and its results from a zero state."""

    model_path: Path
    tokens: I32  # [T]
    logits: F32  # [T, V]
    state: dict[str, F32]  # after the last token; field -> [L, ...]


def load_golden(name: str) -> Golden:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as arrays:
        state = {key.removeprefix("state."): arrays[key] for key in arrays.files if key.startswith("state.")}
        return Golden(FOLDER / f"{name}.safetensors", arrays["tokens"], arrays["logits"], state)
