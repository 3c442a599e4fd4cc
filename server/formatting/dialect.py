"""The protocol of the APIs in whose words a generation is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rnn_engine.requests import Event
from server.formatting.choices import Outcome
from server.schemas.usage import Usage


class WholeDialect(Protocol):
    """Formats the answer of one call that is not streamed; its requests are numbered."""

    def whole(
        self, kept: Sequence[int], outcomes: Sequence[Outcome], usage: Usage, extra: Mapping[str, object]
    ) -> Mapping[str, object] | Sequence[Mapping[str, object]]:
        """Return the body of the answer from the requests `kept` of all, with the fields `extra`."""
        ...


class Dialect(WholeDialect, Protocol):
    """Formats the answer of one call, whole or as the events of a stream."""

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:
        """Return what to send of an event of request `index`, with the fields `extra`; empty if there is nothing.

        It is called for every event, in the order in which they come.
        """
        ...

    def ending(self, usage: Usage) -> bytes:
        """Return what ends a stream."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Return the last event of a stream that fails."""
        ...
