"""The number of dialogues that a model answers right, by the numpy reference.

An answer is right if each of its tokens is the model's first choice after those before. Greedy decoding then writes
that answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnn_engine.reference import Weights, project_to_logits
from rnn_engine.tokenizer import Tokenizer
from rnn_engine.types import Model, State
from rnn_engine.versions.table import VERSIONS
from tools.demo_model.corpus.dialogue import Dialogue


def right_answers(
    model: Model, tokenizer: Tokenizer, dialogues: Sequence[Dialogue], initial: State | None = None
) -> int:
    """Return how many of `dialogues` end with the answer that the model would give."""
    weights = Weights(model.shape, model.tensor)
    before = model.shape.initial_state() if initial is None else initial
    prompts = [tokenizer.encode(dialogue.prompt) for dialogue in dialogues]
    answers = [tokenizer.encode(f" {dialogue.answer}\n\n") for dialogue in dialogues]
    lengths = [len(prompt) + len(answer) - 1 for prompt, answer in zip(prompts, answers, strict=True)]
    ids = np.concatenate([[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)])
    states = {name: np.broadcast_to(value, (len(dialogues), *value.shape)) for name, value in before.items()}
    hidden, _ = VERSIONS.get(model.shape.version).run_layers(weights, ids, lengths, states)
    right = 0
    for end, answer in zip(np.cumsum(lengths), answers, strict=True):
        chosen = project_to_logits(weights, hidden[end - len(answer) : end]).argmax(-1)
        right += chosen.tolist() == answer
    return right
