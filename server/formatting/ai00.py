"""The choices of completions under ai00's paths."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.requests import Finished, TextDelta, TokenInfo
from server.formatting.completion import CompletionFormatter
from server.schemas.ai00.generation import Ai00CompletionChoice
from server.schemas.completions import CompletionChoice


class Ai00CompletionFormatter(CompletionFormatter):
    """Formats completion choices, whose chunks have their text in `delta`, too."""

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> Ai00CompletionChoice | None:
        choice = super().opening(index, prompt)
        return None if choice is None else _with_delta(choice)

    def delta(self, index: int, delta: TextDelta) -> Ai00CompletionChoice | None:
        choice = super().delta(index, delta)
        if isinstance(choice, str):
            choice = self.text_chunk(index, choice)
        return None if choice is None else _with_delta(choice)

    def closing(self, index: int, finished: Finished) -> Ai00CompletionChoice:
        return {**super().closing(index, finished), "delta": {}}


def _with_delta(choice: CompletionChoice) -> Ai00CompletionChoice:
    return {**choice, "delta": {"content": choice["text"]}}
