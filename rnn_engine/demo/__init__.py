"""The paths of the demo model's files, which come with the project."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def model_path() -> Path:
    """Return the path of the weights: RWKV-7, safetensors, f16."""
    return _FOLDER / "demo.safetensors"


def tokenizer_path() -> Path:
    """Return the path of the tokenizer: byte-level BPE."""
    return _FOLDER / "tokenizer.json"


def pirate_state_path() -> Path:
    """Return the path of a tuned initial state, with which the model answers like a pirate."""
    return _FOLDER / "pirate.safetensors"
