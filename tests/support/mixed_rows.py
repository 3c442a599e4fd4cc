"""The logits of a mix of states, computed from the definition in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rnn_engine.requests import GenerateRequest
from rnn_engine.sampling.params import MixKind
from rnn_engine.types import F32
from tests.support.fake_runner import Logits, Tokens


def log_softmax(row: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = row - row.max()
    normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return normalised


def mixed_logprobs(rows: Sequence[F32], weights: Sequence[float], kind: MixKind) -> NDArray[np.float64]:
    """Return the natural-log probabilities [V] of the mix."""
    logprobs = np.array([log_softmax(row.astype(np.float64)) for row in rows])
    column = np.array(weights)[:, None]
    if kind == "log":
        return log_softmax((column * logprobs).sum(axis=0))
    mixed: NDArray[np.float64] = np.log((column * np.exp(logprobs)).sum(axis=0) / sum(weights))
    return mixed


def mixed_logits(request: GenerateRequest, logits: Logits, befores: Sequence[Tokens]) -> Logits:
    """Return a function to the logits of a mix after the prompt of `request` and tokens after it.

    `befores` are the tokens that the mix's states have taken in, first those of the request's own state.
    """
    mix, own = request.mix, tuple(request.prompt)
    assert mix is not None
    prompts = [own, *(own if other.prompt is None else tuple(other.prompt) for other in mix.others)]

    def mixed(tokens: Tokens) -> F32:
        drawn = tokens[len(own) :]
        rows = [logits(before + prompt + drawn) for before, prompt in zip(befores, prompts, strict=True)]
        return mixed_logprobs(rows, mix.weights, mix.kind).astype(np.float32)

    return mixed
