"""The model that the tests use: tiny, with random weights that never end a text."""

from __future__ import annotations

from pathlib import Path

from rnn_engine.demo import tokenizer_path
from tests.support.models import random_model, save_safetensors, tiny_shape

_VOCAB_SIZE = 2048  # room for the demo model's tokenizer
_END = 0  # the token that ends a text


def write_model(folder: Path) -> Path:
    """Write the model into `folder`, with the demo model's tokenizer beside it, and return its path."""
    model = random_model(tiny_shape(vocab=_VOCAB_SIZE), seed=1)
    model.tensors["ln_out.weight"][0] = 0.0  # so that channel 0 is the same after every token
    model.tensors["ln_out.bias"][0] = 8.0
    model.tensors["head.weight"][:, 0] = 0.0
    model.tensors["head.weight"][_END, 0] = -16.0
    (folder / tokenizer_path().name).write_bytes(tokenizer_path().read_bytes())
    return save_safetensors(model, folder / "tiny.safetensors")
