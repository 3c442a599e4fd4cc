"""Prompts in bodies: texts or token ids, one or a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import PlainValidator, WithJsonSchema

from rnn_engine.interface import EngineLike
from server.limits import Limits
from server.schemas.base import INTEGERS, STRING, RefusedError, is_integers

Prompt: TypeAlias = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """Token ids with texts between them."""

    parts: tuple[int | str, ...]

    def __len__(self) -> int:
        return sum(len(part) if isinstance(part, str) else 1 for part in self.parts)


AnyPrompt: TypeAlias = Prompt | MixedPrompt

_PROMPT_FORMS = (
    "a string, a list of token ids (with strings between them, where it is one prompt), or a list of such prompts"
)


def parse_prompts(value: object) -> tuple[AnyPrompt, ...]:
    """Return one prompt in any form or a list of them as a list. A list that has token ids is one prompt."""
    if isinstance(value, list) and value and not any(type(item) is int for item in value):
        return tuple(_parse_prompt(item, value) for item in value)
    if value == []:
        raise RefusedError(value, _PROMPT_FORMS)
    return (_parse_prompt(value, value),)


def parse_joined(value: object) -> tuple[AnyPrompt, ...]:
    """Return prompts as `parse_prompts` does, but texts in a list as one text, and nothing as an empty one."""
    if value is None:
        return ("",)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ("".join(value),)
    return parse_prompts(value)


def _parse_prompt(value: object, whole: object) -> AnyPrompt:
    match value:
        case str():
            return value
        case list() if is_integers(value):
            return tuple(value)
        case list() if all(type(item) is int or isinstance(item, str) for item in value):
            return MixedPrompt(tuple(value))
        case {"prompt_string": str(text), **others} if not others.get("multimodal_data"):
            return text
        case {"prompt_string": str()}:
            raise RefusedError(value, "a prompt without multimodal_data, since the model reads text only")
    raise RefusedError(whole, _PROMPT_FORMS)


def _parse_input(value: object) -> Prompt:
    if isinstance(value, str):
        return value
    if is_integers(value):
        return tuple(value)
    raise RefusedError(value, "a text or a list of token ids")


STRINGS = {"type": "array", "items": STRING}
_MIXED = {"type": "array", "items": {"anyOf": [{"type": "integer"}, STRING]}}
_OBJECT = {"type": "object", "required": ["prompt_string"], "properties": {"prompt_string": STRING}}
_PROMPTS = [STRING, _MIXED, _OBJECT, {"type": "array", "items": {"anyOf": [_MIXED, _OBJECT]}}]
Prompts: TypeAlias = Annotated[
    tuple[AnyPrompt, ...], PlainValidator(parse_prompts), WithJsonSchema({"anyOf": _PROMPTS})
]
PROMPTS_SCHEMA = {"anyOf": _PROMPTS}
JOINED_SCHEMA = {"anyOf": [*_PROMPTS, {"type": "null"}]}
JoinedPrompts: TypeAlias = Annotated[tuple[AnyPrompt, ...], PlainValidator(parse_joined), WithJsonSchema(JOINED_SCHEMA)]
"""Prompts as ai00 takes them: of texts, a list is one, and null is none."""
Input: TypeAlias = Annotated[Prompt, PlainValidator(_parse_input), WithJsonSchema({"anyOf": [STRING, INTEGERS]})]


def check_prompts(limits: Limits, field: str, prompts: Sequence[AnyPrompt]) -> None:
    """Raise InvalidRequestError where the prompts are more than a request may hold, as far as is known by now."""
    texts = [part for prompt in prompts for part in _parts(prompt) if isinstance(part, str)]
    limits.check("max_text_bytes", field, sum(len(text.encode()) for text in texts))
    limits.check(
        "max_prompt_tokens",
        field,
        sum(len(part) for prompt in prompts for part in _parts(prompt) if not isinstance(part, str)),
    )


def _parts(prompt: AnyPrompt) -> Sequence[Prompt]:
    if not isinstance(prompt, MixedPrompt):
        return (prompt,)
    return [part if isinstance(part, str) else (part,) for part in prompt.parts]


def tokens_of(engine: EngineLike, prompt: AnyPrompt) -> Sequence[int]:
    """Return the tokens of a prompt; ids that a client sent are not checked."""
    match prompt:
        case str():
            return engine.tokenize(prompt)
        case MixedPrompt():
            return [token for part in _parts(prompt) for token in tokens_of(engine, part)]
    return prompt


def text_of(engine: EngineLike, prompt: AnyPrompt) -> str:
    """Return the text of a prompt, with U+FFFD where the bytes of tokens are no UTF-8."""
    return prompt if isinstance(prompt, str) else engine.detokenize(tokens_of(engine, prompt)).decode(errors="replace")
