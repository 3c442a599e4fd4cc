"""How the choices of an answer look: what a route gives to `server.answer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rnn_engine.requests import Event, Finished, PromptScored, TextDelta, TokenInfo

Choice: TypeAlias = Mapping[str, object]


@dataclass(slots=True)
class Outcome:
    """All that one engine request gave."""

    prompt: tuple[TokenInfo, ...] = ()  # empty unless the prompt was scored
    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case PromptScored():
                self.prompt = event.tokens
            case TextDelta():
                self.text += event.text
                self.tokens.extend(event.tokens)


class ChoiceFormatter(Protocol):
    """How the choices of one call look. Each choice's methods are called in the order of its events."""

    @property
    def id_prefix(self) -> str: ...

    @property
    def object(self) -> str: ...

    @property
    def chunk_object(self) -> str: ...

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> Choice | None:
        """What a stream says of a choice before its text; `prompt` is empty unless it was scored."""
        ...

    def delta(self, index: int, delta: TextDelta) -> Choice | None:
        """More text, or None where there is nothing to say yet."""
        ...

    def closing(self, index: int, finished: Finished) -> Choice:
        """Why and how the choice ended."""
        ...

    def whole(self, index: int, outcome: Outcome, finished: Finished) -> Choice:
        """The choice in an answer that is no stream."""
        ...
