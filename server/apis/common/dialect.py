"""The protocols by which an API formats the answer of a generation, and helpers for its token counts and times."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from rnn_engine.operations.parallel import Cost
from rnn_engine.requests import Event, Finished, PromptProgress, PromptScored, Started, TextDelta, TokenInfo
from server.core.schema import Timings, Usage


class Tally:
    """Adds up the token counts of an answer with `copies` choices a prompt. Choices are numbered prompt by prompt."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add(self, choice: int, event: Event) -> None:
        """Count the tokens that an event of choice number `choice` reports.

        A prompt counts once, for its first choice.
        """
        if isinstance(event, Finished):
            self._completion_tokens += event.completion_tokens
        elif isinstance(event, Started) and choice % self._copies == 0:
            self._prompt_tokens += event.prompt_tokens
            self._cached_tokens += event.cached_tokens

    def usage(self) -> Usage:
        """Return the token counts of all events so far."""
        return _usage(self._prompt_tokens, self._cached_tokens, self._completion_tokens)


def usage_of(costs: Sequence[Cost]) -> Usage:
    """Return the token counts of an answer that generates no text, from the costs of its prompts."""
    return _usage(sum(cost.prompt_tokens for cost in costs), sum(cost.cached_tokens for cost in costs), 0)


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Usage:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class AnswerClock:
    """Makes the fields of a stream's events that report one request's progress and times."""

    def __init__(self, *, with_each: bool = False) -> None:
        """Report the times only with the last event, or with each event if `with_each` is set."""
        self._with_each = with_each
        self._begun: float | None = None  # when the prompt began to run
        self.started: Started | None = None
        self.predicted = 0  # tokens that were sent

    def tell(self, event: Event) -> Mapping[str, object]:
        """Return the fields to add to what is sent for `event`: `prompt_progress` or `timings`, or none."""
        timings: Timings | None = None
        match event:
            case PromptProgress():
                return self._tell_progress(event)
            case Started():
                self.started = event
            case TextDelta():
                self.predicted += len(event.tokens)
                if self._with_each and self.started is not None:
                    timings = _timings(self.started, self.predicted, time.monotonic())
            case Finished() if self.started is not None:
                timings = timings_of(self.started, event)
        return {} if timings is None else {"timings": timings}

    def _tell_progress(self, event: PromptProgress) -> Mapping[str, object]:
        now = time.monotonic()
        self._begun = self._begun or now
        seconds = now - self._begun
        progress = {
            "total": event.prompt_tokens,
            "cache": event.cached_tokens,
            "processed": event.processed_tokens,
            "time_ms": 1000 * seconds,
        }
        if not self._with_each:
            return {"prompt_progress": progress}
        timings = _rates(event.cached_tokens, event.processed_tokens - event.cached_tokens, seconds, 0, 0.0)
        return {"prompt_progress": progress, "timings": timings}


def timings_of(started: Started, finished: Finished, ended: float | None = None) -> Timings | None:
    """Return the field `timings` of a finished request, or None if the engine has measured no times.

    `ended` is when the request ended, by `time.monotonic`; None means now.
    """
    timings = _timings(started, finished.completion_tokens, time.monotonic() if ended is None else ended)
    if timings is not None and finished.draft_tokens > 0:
        timings["draft_n"], timings["draft_n_accepted"] = finished.draft_tokens, finished.accepted_tokens
    return timings


def _timings(started: Started, predicted_tokens: int, now: float) -> Timings | None:
    timing = started.timing
    if timing is None:
        return None
    prompt_tokens = started.prompt_tokens - started.cached_tokens
    prompt_seconds, predicted_seconds = timing.first_token - timing.started, max(now - timing.first_token, 0.0)
    return _rates(started.cached_tokens, prompt_tokens, prompt_seconds, predicted_tokens, predicted_seconds)


def _rates(
    cached_tokens: int, prompt_tokens: int, prompt_seconds: float, predicted_tokens: int, predicted_seconds: float
) -> Timings:
    predicted_steps = max(predicted_tokens - 1, 0)  # the first token came with the prompt
    return {
        "cache_n": cached_tokens,
        "prompt_n": prompt_tokens,
        "prompt_ms": prompt_seconds * 1000,
        "prompt_per_token_ms": _ratio(prompt_seconds * 1000, prompt_tokens),
        "prompt_per_second": _ratio(prompt_tokens, prompt_seconds),
        "predicted_n": predicted_tokens,
        "predicted_ms": predicted_seconds * 1000,
        "predicted_per_token_ms": _ratio(predicted_seconds * 1000, predicted_steps),
        "predicted_per_second": _ratio(predicted_steps, predicted_seconds),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


# The choices of an answer: what they are made from, and the protocol that each kind of answer implements.

Choice: TypeAlias = Mapping[str, object]


@dataclass(slots=True)
class ChoiceOutcome:
    """All events of one engine request put together: its text, tokens, scored prompt, start and end."""

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
        """The field `timings` for the answer; empty if the engine has measured no times."""
        timings = None if self.started is None else timings_of(self.started, self.end, self.ended)
        return {} if timings is None else {"timings": timings}

    @property
    def drawn(self) -> list[TokenInfo]:
        """All sampled tokens, including a stop token at the end."""
        return [*self.tokens, *([] if self.end.stop_token is None else [self.end.stop_token])]

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of the drawn tokens; 0 if there are none."""
        drawn = self.drawn
        return math.fsum(info.logprob for info in drawn if info.logprob is not None) / max(len(drawn), 1)


class ChoiceFormatter(Protocol):
    """Formats the choices of an answer in OpenAI's style.

    For each choice the methods are called in the order of its events.
    """

    @property
    def id_prefix(self) -> str: ...

    @property
    def object(self) -> str: ...

    @property
    def chunk_object(self) -> str: ...

    def opening(self, index: int, prompt: Sequence[TokenInfo]) -> Choice | None:
        """Return the first chunk of choice `index`, before its text, or None if there is nothing to send.

        `prompt` has the scored tokens of the prompt; it is empty if the prompt was not scored.
        """
        ...

    def delta(self, index: int, delta: TextDelta) -> Choice | str | None:
        """Return a chunk for more text of choice `index`, or None if there is nothing to send yet.

        A string stands for the chunk that `text_chunk` makes of it.
        """
        ...

    def text_chunk(self, index: int, text: str) -> Choice:
        """Return a chunk with more text and nothing else."""
        ...

    def closing(self, index: int, finished: Finished) -> Choice:
        """Return the last chunk of choice `index`, with the reason why it ended."""
        ...

    def whole(self, index: int, outcome: ChoiceOutcome, finished: Finished) -> Choice:
        """Return a choice of an answer that is not streamed."""
        ...


class WholeDialect(Protocol):
    """Formats an answer that is not streamed, made from the outcomes of its engine requests."""

    def whole(
        self, kept: Sequence[int], outcomes: Sequence[ChoiceOutcome], usage: Usage, extra: Mapping[str, object]
    ) -> Mapping[str, object] | Sequence[Mapping[str, object]]:
        """Return the body of the answer, with the fields `extra` added.

        `outcomes` has one entry for each engine request; `kept` are the indices of those to return.
        """
        ...


class Dialect(WholeDialect, Protocol):
    """Formats an answer either whole or as the events of a stream."""

    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:
        """Return the encoded bytes to send for an event of engine request `index`, with the fields `extra` added.

        The bytes may be empty. The method is called for every event, in the order of the events.
        """
        ...

    def ending(self, usage: Usage) -> bytes:
        """Return the bytes that end a stream."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Return the encoded last event of a stream that ends with `error`."""
        ...
