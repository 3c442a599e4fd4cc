"""Conversations that come in the words of other APIs, as those of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from server.schemas.chat import ChatRequest
from server.schemas.generation import GenerationBody


def shared_fields(body: GenerationBody) -> dict[str, Any]:
    """Return the fields that every generation has, for `model_construct` of another kind of body."""
    return {name: getattr(body, name) for name in GenerationBody.model_fields}


class TranslatedChat(ChatRequest):
    """A conversation of another API, in which `stop` adds to what ends a turn."""

    @classmethod
    def of(cls, body: GenerationBody, **fields: Any) -> Self:  # noqa: ANN401
        """Return what has the fields of every generation from `body`, and further ones, which are not checked one by
        one. Raises InvalidRequestError for fields that contradict each other."""
        return cls.model_construct(body.model_fields_set | fields.keys(), **{**shared_fields(body), **fields})

    def stops(self, of_template: Sequence[str]) -> Sequence[str]:
        return (*self.stop, *(of_template if self.answer_grammar is None else ()))
