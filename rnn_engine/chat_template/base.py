"""The protocol of chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rnn_engine.chat_template.messages import Conversation
from rnn_engine.chat_template.tools import ToolFormat


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as one text."""

    text: str
    turn_ends: Mapping[int, int] = field(default_factory=dict)
    """Number of messages -> how many characters of the text these take, for those numbers for which a longer
    conversation begins with the same text. Zero messages take what is said of tools."""
    stop: tuple[str, ...] = ()  # the texts before which an answer ends unless its request says otherwise
    stop_tokens: tuple[str, ...] = ()  # the special tokens that end it, beside the end of text


class ChatTemplate(Protocol):
    """Turns conversations into the text that a model continues. Safe to use from several threads."""

    @property
    def source(self) -> Mapping[str, str] | str:
        """What clients may read of it: the texts around the messages, or the template's own text."""
        ...

    @property
    def tool_format(self) -> ToolFormat: ...

    def most_characters(self, conversation: Conversation) -> int:
        """Return about how much work rendering is, and a bound on the length of the prompt where one is known
        beforehand; builds nothing."""
        ...

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt.

        Raises InvalidRequestError where the template refuses the conversation, or where that takes too long or makes
        more than `most_characters`.
        """
        ...

    def follow(self, text: str) -> str:
        """Return what comes between a text that the model has taken in, of which the end is enough, and a chat."""
        ...
