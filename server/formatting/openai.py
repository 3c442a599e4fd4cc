"""Generations answered as OpenAI does: choices in an object, or in the chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnn_engine.interface import EngineInfo
from rnn_engine.requests import Event, Finished, GenerateRequest, Started
from server.formatting.choices import ChoiceFormatter, Outcome
from server.formatting.envelope import ChunkEncoder, ResponseEnvelope
from server.formatting.timings import timings_of
from server.http.errors import describe
from server.http.sse import DONE, encode_event
from server.schemas.usage import Usage


class OpenAIDialect:
    """The `Dialect` of completions and chats."""

    def __init__(
        self,
        info: EngineInfo,
        formatter: ChoiceFormatter,
        calls: Sequence[GenerateRequest],
        *,
        include_usage: bool,
        extra: Mapping[str, object],
    ) -> None:
        """`extra` has further fields of an answer that is not streamed."""
        self._envelope = ResponseEnvelope(info, formatter)
        self._formatter = formatter
        self._encoder = ChunkEncoder(self._envelope, formatter, calls, include_usage=include_usage)
        self._include_usage = include_usage
        self._extra = extra
        self._is_single = len(calls) == 1
        self._started: Started | None = None
        self._timings: Mapping[str, object] = {}

    def whole(
        self, kept: Sequence[int], outcomes: Sequence[Outcome], usage: Usage, extra: Mapping[str, object]
    ) -> Mapping[str, object]:
        choices = [
            {**self._formatter.whole(place, outcomes[place], outcomes[place].end), "index": index}
            for index, place in enumerate(kept)
        ]
        if self._is_single:
            extra = {**_timings(outcomes[0].started, outcomes[0].end, outcomes[0].ended), **extra}
        return self._envelope.whole(choices, usage, {**extra, **self._extra})

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Finished) and self._is_single:
            self._timings = _timings(self._started, event)
            extra = {**self._timings, **extra}
        return self._encoder.encode(index, event, extra)

    def ending(self, usage: Usage) -> bytes:
        return (self._encoder.encode_usage(usage, self._timings) if self._include_usage else b"") + DONE

    def failure(self, error: Exception) -> bytes:
        return encode_event(describe(error).body)


def _timings(started: Started | None, finished: Finished, ended: float | None = None) -> Mapping[str, object]:
    """Return the field that tells the times of the one request of an answer, where they were taken."""
    timings = None if started is None else timings_of(started, finished, ended)
    return {} if timings is None else {"timings": timings}
