"""The golden files: small models, and the results of BlinkDL's `rwkv` package with them in f32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rnn_engine.loading.settings import LoraSettings
from rnn_engine.types import F32, I32

FOLDER = Path(__file__).resolve().parents[1] / "golden"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))
ILL_CONDITIONED = "v6-deep-head32-odd-sizes"
"""Its layer 4 norms a vector that is nearly 0: noise of 3e-8 in the weights moves its logits by up to 2e-5."""
LORA = LoraSettings(rank=3, alpha=5.0)
"""The low-rank pairs of the golden files in the folder `lora`."""
GRADIENT_NAMES = tuple(sorted(path.stem for path in FOLDER.glob("gradients/*.npz")))


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


@dataclass(frozen=True, slots=True)
class GoldenGradients:
    """The loss of a golden file's tokens from a random state, and its gradient, computed by torch's autograd in f64.

    Those in the folder `lora` have low-rank pairs by their names in place of a state.
    """

    state: dict[str, F32]  # before the first token; field -> [L, ...]
    loss: float  # in nats, the sum over all predictions
    gradient: dict[str, F32]  # field -> [L, ...]


def load_gradients(name: str, kind: str = "gradients") -> GoldenGradients:
    with np.load(FOLDER / kind / f"{name}.npz", allow_pickle=False) as arrays:
        state, gradient = (
            {key.removeprefix(part): arrays[key].astype(np.float32) for key in arrays.files if key.startswith(part)}
            for part in ("state.", "gradient.")
        )
        return GoldenGradients(state, float(arrays["loss"]), gradient)
