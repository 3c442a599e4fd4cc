"""The choices of an answer: what they are made from, and the protocol that each kind of answer implements."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rnn_engine.requests import Event, Finished, PromptScored, Started, TextDelta, TokenInfo
from server.formatting.timings import timings_of

Choice: TypeAlias = Mapping[str, object]


@dataclass(slots=True)
class Outcome:
    """All that one engine request gave."""

    started: Started | None = None
    finished: Finished | None = None
    ended: float = 0.0  # when it finished, by `time.monotonic`
    prompt: tuple[TokenInfo, ...] = ()  # empty unless the prompt was scored
    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Started():
                self.started = event
            case PromptScored():
                self.prompt = event.tokens
            case TextDelta():
                self.text += event.text
                self.tokens.extend(event.tokens)
            case Finished():
                self.finished, self.ended = event, time.monotonic()

    @property
    def end(self) -> Finished:
        """The last event of a request that has ended."""
        assert self.finished is not None
        return self.finished

    @property
    def times(self) -> Mapping[str, object]:
        """The field that tells how long it took; none where no times were taken."""
        timings = None if self.started is None else timings_of(self.started, self.end, self.ended)
        return {} if timings is None else {"timings": timings}

    @property
    def drawn(self) -> list[TokenInfo]:
        """All tokens that were drawn, a stop token included."""
        return [*self.tokens, *([] if self.end.stop_token is None else [self.end.stop_token])]

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of a token that was drawn; 0 where none was."""
        drawn = self.drawn
        return math.fsum(info.logprob for info in drawn if info.logprob is not None) / max(len(drawn), 1)


class ChoiceFormatter(Protocol):
    """Formats the choices of one call. The methods are called for each choice in the order of its events."""

    @property
    def id_prefix(self) -> str: ...

    @property
    def object(self) -> str: ...

    @property
    def chunk_object(self) -> str: ...

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> Choice | None:
        """Return the first chunk of a choice, before its text; `prompt` is empty unless it was scored."""
        ...

    def delta(self, index: int, delta: TextDelta) -> Choice | str | None:
        """Return a chunk with more of a choice, None if there is nothing to send yet.

        A string stands for `text_chunk` of it.
        """
        ...

    def text_chunk(self, index: int, text: str) -> Choice:
        """Return a chunk with more text and nothing else."""
        ...

    def closing(self, index: int, finished: Finished) -> Choice:
        """Return the last chunk of a choice: why and how it ended."""
        ...

    def whole(self, index: int, outcome: Outcome, finished: Finished) -> Choice:
        """Return a choice of an answer that is not streamed."""
        ...
