"""Generations answered as OpenAI does: choices in an object, or in the chunks of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnn_engine.interface import EngineInfo
from rnn_engine.requests import Event, Finished, GenerateRequest
from server.formatting.choices import ChoiceFormatter, Outcome
from server.formatting.envelope import ChunkEncoder, ResponseEnvelope
from server.formatting.timings import AnswerClock
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
        times_each: bool,
        extra: Mapping[str, object],
    ) -> None:
        """`times_each`: each event of a stream tells times, not only the last one of a choice.

        `extra` has further fields of an answer that is not streamed.
        """
        self._envelope = ResponseEnvelope(info, formatter)
        self._formatter = formatter
        self._encoder = ChunkEncoder(self._envelope, formatter, calls, include_usage=include_usage)
        self._include_usage = include_usage
        self._extra = extra
        self._is_single = len(calls) == 1
        self._clocks = [AnswerClock(with_each=times_each) for _ in calls]
        self._last_times: Mapping[str, object] = {}

    def whole(
        self, kept: Sequence[int], outcomes: Sequence[Outcome], usage: Usage, extra: Mapping[str, object]
    ) -> Mapping[str, object]:
        choices = [
            {**self._formatter.whole(place, outcomes[place], outcomes[place].end), "index": index}
            for index, place in enumerate(kept)
        ]
        if self._is_single:
            extra = {**outcomes[0].times, **extra}
        return self._envelope.whole(choices, usage, {**extra, **self._extra})

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:
        told = self._clocks[index].tell(event)
        if isinstance(event, Finished) and self._is_single:
            self._last_times = told
        return self._encoder.encode(index, event, {**told, **extra})

    def ending(self, usage: Usage) -> bytes:
        return (self._encoder.encode_usage(usage, self._last_times) if self._include_usage else b"") + DONE

    def failure(self, error: Exception) -> bytes:
        return encode_event(describe(error).body)
