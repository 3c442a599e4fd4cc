"""The demo model that ships with the project: where its files lie. Knows paths alone."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def model_path() -> Path:
    """The weights: RWKV-7, safetensors, f16."""
    return _FOLDER / "demo.safetensors"


def tokenizer_path() -> Path:
    """The tokenizer: byte-level BPE."""
    return _FOLDER / "tokenizer.json"


def pirate_state_path() -> Path:
    """A tuned initial state, from which the model answers like a pirate."""
    return _FOLDER / "pirate.safetensors"
