"""Count the tokens of an answer, from its events or from the costs of its parts."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_engine.operations.cost import Cost
from rnn_engine.requests import Event, Finished, Started
from server.schemas.usage import Usage


class Tally:
    """Counts the usage of an answer of `copies` choices a prompt; the choices are numbered prompt by prompt."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add(self, choice: int, event: Event) -> None:
        """Count one event. A prompt counts once, for its first copy."""
        if isinstance(event, Finished):
            self._completion_tokens += event.completion_tokens
        elif isinstance(event, Started) and choice % self._copies == 0:
            self._prompt_tokens += event.prompt_tokens
            self._cached_tokens += event.cached_tokens

    def usage(self) -> Usage:
        """Return the usage of the events so far."""
        return _usage(self._prompt_tokens, self._cached_tokens, self._completion_tokens)


def usage_of(costs: Sequence[Cost]) -> Usage:
    """Return the usage of an answer that generates nothing."""
    return _usage(sum(cost.prompt_tokens for cost in costs), sum(cost.cached_tokens for cost in costs), 0)


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Usage:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
