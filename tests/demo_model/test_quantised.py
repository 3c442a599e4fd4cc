"""The demo model with quantised weights: its next tokens are almost as likely as with the weights of its file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from rnn_engine.demo import model_path
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.loading.runner import open_model
from rnn_engine.model import ModelFile
from rnn_engine.reference import Array
from rnn_engine.tokenizer import load_tokenizer
from tests.support.quantised import quantised
from tests.support.reference import forward, mean_divergence
from tools.demo_model.corpus.mixture import held_out

SKILLS = ("arithmetic", "fact", "memory", "spell", "json_fields")


@dataclass(frozen=True, slots=True)
class Text:
    """Held-out dialogues, and the model's logits after each of their tokens."""

    model: ModelFile
    tokens: list[int]
    logits: Array  # [T, V]


@pytest.fixture(scope="module")
def text() -> Iterator[Text]:
    with open_model(model_path()) as model:
        tokenizer = load_tokenizer("auto", model_path(), model.shape.vocab_size)
        dialogues = [part for skill in SKILLS for each in held_out(skill, 3) for part, _ in each.parts()]
        tokens = list(tokenizer.encode("".join(dialogues)))[:300]
        yield Text(model, tokens, forward(model, tokens)[0])


@pytest.mark.parametrize(
    ("weights", "most"),
    [
        ("int8", 1e-3),
        ("q8_0", 1e-3),
        ("int4", 2e-2),
        ("q4_1", 2e-2),
        ("q4_0", 2e-2),
        ("nf4", 2e-2),
        ("sf4", 2e-2),
        ("q4_k", 2e-2),
        ("q4_k_m", 5e-2),
        ("q5_k_m", 2e-2),
        ("q6_k", 5e-3),
    ],
)
def test_what_is_lost_is_small(text: Text, weights: str, most: float) -> None:
    found, _ = forward(quantised(text.model, WeightChoice.parse(weights)), text.tokens)
    assert np.isfinite(found).all()
    assert 0 < mean_divergence(text.logits, found) < most
