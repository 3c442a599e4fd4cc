"""Prompts to tokens and to text. Knows a tokenizer, no route."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from server.schemas.prompt import Prompt


def tokens_of(engine: EngineLike, prompt: Prompt) -> Sequence[int]:
    return engine.tokenize(prompt) if isinstance(prompt, str) else prompt


def text_of(engine: EngineLike, prompt: Prompt) -> str:
    """The text; U+FFFD stands where the tokens' bytes are no UTF-8."""
    return prompt if isinstance(prompt, str) else engine.detokenize(prompt).decode(errors="replace")


def check_ids(engine: EngineLike, field: str, tokens: Sequence[int]) -> None:
    """Raise InvalidRequestError for the first of `tokens` that is no token id."""
    last = engine.info.shape.vocab_size - 1
    for token in tokens:
        if not 0 <= token <= last:
            raise InvalidRequestError(field, token, f"token ids from 0 to {last}")
