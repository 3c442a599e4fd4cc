"""Find the files of the demo model, a small RWKV-7 model that is part of this package."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def model_path() -> Path:
    """Return the path of the demo model's weights: RWKV-7, safetensors, f16."""
    return _FOLDER / "demo.safetensors"


def tokenizer_path() -> Path:
    """Return the path of the demo model's tokenizer.json: byte-level BPE."""
    return _FOLDER / "tokenizer.json"


def pirate_state_path() -> Path:
    """Return the path of a tuned initial state, with which the demo model answers like a pirate."""
    return _FOLDER / "pirate.safetensors"
