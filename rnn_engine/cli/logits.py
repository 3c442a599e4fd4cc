"""Write the logits and the state of a forward pass to a file for `rnn-engine logits`, to compare engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import output_file
from rnn_engine.llm.model import Model
from rnn_engine.llm.progress import progress_bar
from rnn_engine.loading.settings import LoadSettings


def write_logits(
    output: Path,
    tokens: Sequence[int],
    model: Path,
    loading: LoadSettings,
    *,
    chunk: int,
    state: Path | None,
    any_model: bool,
) -> None:
    """Run `tokens` from the state in a file, if given, `chunk` in a step; write the logits and the state after them."""
    with (
        output_file(output) as file,
        progress_bar("opening the model") as report,
        Model(
            model,
            device=loading.device,
            weights=loading.weights,
            loras=loading.loras,
            tokenizer="none",
            max_sequences=1,
            max_tokens=max(min(chunk, len(tokens)), 1),
            v5_group_norm_epsilon=loading.v5_group_norm_epsilon,
            device_memory=loading.device_memory,
            progress=report,
        ) as opened,
    ):
        _check(tokens, opened.shape.vocab_size)
        initial = None if state is None else opened.load_state(state, any_model=any_model)
        logits, after = opened.forward(tokens, initial, all_logits=True)
        layers = {
            f"state.{layer}.{name}": values for name, array in after.items() for layer, values in enumerate(array)
        }
        np.savez(file, allow_pickle=False, logits=logits, **layers)


def _check(tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise InvalidRequestError("--tokens", list(tokens), "at least one token id")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError("--tokens", token, f"token ids from 0 to {vocab_size - 1}")
