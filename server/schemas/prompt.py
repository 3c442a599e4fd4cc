"""Prompts in bodies: texts or token ids, one or a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import PlainValidator, WithJsonSchema

from rnn_engine.interface import EngineLike
from server.limits import Limits
from server.schemas.base import INTEGERS, STRING, RefusedError, is_integers

Prompt: TypeAlias = str | tuple[int, ...]

_PROMPT_FORMS = "a string, a list of strings, a list of token ids, or a list of lists of token ids"


def _parse_prompts(value: object) -> tuple[Prompt, ...]:
    """Return any of the four forms of `prompt` as a list of prompts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise RefusedError(value, _PROMPT_FORMS)
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if is_integers(value):
        return (tuple(value),)
    if all(is_integers(item) for item in value):
        return tuple(tuple(item) for item in value)
    raise RefusedError(value, _PROMPT_FORMS)


def _parse_input(value: object) -> Prompt:
    if isinstance(value, str):
        return value
    if is_integers(value):
        return tuple(value)
    raise RefusedError(value, "a text or a list of token ids")


STRINGS = {"type": "array", "items": STRING}
Prompts: TypeAlias = Annotated[
    tuple[Prompt, ...],
    PlainValidator(_parse_prompts),
    WithJsonSchema({"anyOf": [STRING, STRINGS, INTEGERS, {"type": "array", "items": INTEGERS}]}),
]
Input: TypeAlias = Annotated[Prompt, PlainValidator(_parse_input), WithJsonSchema({"anyOf": [STRING, INTEGERS]})]


def check_prompts(limits: Limits, field: str, prompts: Sequence[Prompt]) -> None:
    """Raise InvalidRequestError where the prompts are more than a request may hold, as far as is known by now."""
    limits.check("max_text_bytes", field, sum(len(prompt.encode()) for prompt in prompts if isinstance(prompt, str)))
    limits.check("max_prompt_tokens", field, sum(len(prompt) for prompt in prompts if not isinstance(prompt, str)))


def tokens_of(engine: EngineLike, prompt: Prompt) -> Sequence[int]:
    """Return the tokens of a prompt; ids that a client sent are not checked."""
    return engine.tokenize(prompt) if isinstance(prompt, str) else prompt


def text_of(engine: EngineLike, prompt: Prompt) -> str:
    """Return the text of a prompt, with U+FFFD where the bytes of tokens are no UTF-8."""
    return prompt if isinstance(prompt, str) else engine.detokenize(prompt).decode(errors="replace")
