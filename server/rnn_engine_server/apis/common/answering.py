"""Run the engine requests of one HTTP request that generates text, and answer it at once or as a stream.

The base class of what gives an answer the form of an API comes first, with helpers for token counts and times.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from rnn_engine.interface import EngineLike
from rnn_engine.operations.parallel import Cost, ParallelRequests
from rnn_engine.requests import (
    Event,
    Finished,
    GenerateRequest,
    PromptProgress,
    PromptScored,
    Started,
    TextDelta,
    TokenInfo,
)
from rnn_engine_server.apis.common.generation import GenerationBody
from rnn_engine_server.apis.common.states import EndSaver, ResolvedState
from rnn_engine_server.auth.engine import engine_of
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import EVENT_STREAM, Long, Stream, comment, failure_event
from rnn_engine_server.core.routing import SETTINGS
from rnn_engine_server.core.schema import Timings, Usage
from rnn_engine_server.core.workers import work


class Tally:
    """Adds up the token counts of one HTTP answer, which has `copies` choices for each prompt, as its events arrive.

    Choices are numbered prompt by prompt.
    """

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens: Counter[int] = Counter()  # by choice

    def add(self, choice: int, event: Event) -> None:
        """Add the token counts that are in `event`, an event of choice number `choice`.

        A prompt counts once, for its first choice.
        """
        if isinstance(event, TextDelta):
            self._completion_tokens[choice] += len(event.tokens)
        elif isinstance(event, Finished):
            self._completion_tokens[choice] = event.completion_tokens
        elif isinstance(event, Started) and choice % self._copies == 0:
            self._prompt_tokens += event.prompt_tokens
            self._cached_tokens += event.cached_tokens

    def usage(self) -> Usage:
        """Return the token counts of the answer, from all events so far."""
        return _usage(self._prompt_tokens, self._cached_tokens, self._completion_tokens.total())


def usage_of(costs: Sequence[Cost]) -> Usage:
    """Return the token counts for an answer without generated text: the sum of the costs of its prompts."""
    return _usage(sum(cost.prompt_tokens for cost in costs), sum(cost.cached_tokens for cost in costs), 0)


def _usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Usage:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class AnswerClock:
    """Measures one streamed engine request, and makes the fields that report its progress and times in its events."""

    def __init__(self, *, with_each: bool = False) -> None:
        """Report the times only with the last event or, if `with_each` is set, with each event."""
        self._with_each = with_each
        self._begun: float | None = None  # when the prompt began to run
        self.started: Started | None = None
        self.predicted = 0  # tokens that were sent

    def tell(self, event: Event) -> Mapping[str, object]:
        """Return the fields that report progress or times with an event: `prompt_progress`, `timings`, both or none."""
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
    """Return the field `timings` of an ended engine request, or None if the engine has measured no times.

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


# What an answer is made from, and the base class of what makes it in the form of an API.


@dataclass(slots=True)
class ChoiceOutcome:
    """The outcome of one engine request, collected from all its events: text, tokens, scored prompt, start and end."""

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
        """The last event of the engine request, which must have ended."""
        assert self.finished is not None
        return self.finished

    @property
    def times(self) -> Mapping[str, object]:
        """The field `timings` of the answer, as a dict that is empty if the engine has measured no times."""
        timings = None if self.started is None else timings_of(self.started, self.end, self.ended)
        return {} if timings is None else {"timings": timings}

    @property
    def drawn(self) -> list[TokenInfo]:
        """All tokens sampled for the answer, including a stop token at the end."""
        return [*self.tokens, *([] if self.end.stop_token is None else [self.end.stop_token])]

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of the tokens sampled for the answer; 0 if there are none."""
        drawn = self.drawn
        return math.fsum(info.logprob for info in drawn if info.logprob is not None) / max(len(drawn), 1)


def stop_text(finished: Finished) -> str:
    """Return the stop string that ended a text; empty if none did."""
    return finished.stop.decode() if isinstance(finished.stop, bytes) else ""


@dataclass(frozen=True, slots=True)
class Ended:
    """What an answer that is not streamed is made from."""

    outcomes: Sequence[ChoiceOutcome]  # one for each engine request
    kept: Sequence[int]  # the indices of those to return, in their order
    usage: Usage
    extra: Mapping[str, object]  # fields to add to the answer

    @property
    def first(self) -> ChoiceOutcome:
        """The first outcome to return: the only one, or the best of several answers."""
        return self.outcomes[self.kept[0]]


Body: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]]
"""The body of an answer."""


class Dialect(ABC):
    """Makes an API's answer to one HTTP request: a body of the outcomes, or a stream of the events."""

    @abstractmethod
    def whole(self, ended: Ended) -> Body:
        """Return the body of an answer that is not streamed."""

    @abstractmethod
    def event(self, index: int, event: Event, extra: Mapping[str, object]) -> bytes:
        """Return the bytes to send in a stream for an event of engine request `index`, with the fields `extra` added.

        The bytes may be empty. The method is called for every event, in the order of the events.
        """

    def ending(self, usage: Usage) -> bytes:  # noqa: ARG002
        """Return the bytes that end a stream which has not failed; by default none."""
        return b""

    def failure(self, failure: Failure) -> bytes:
        """Return the encoded last event of a stream that fails."""
        return failure_event(failure)


Keep: TypeAlias = Callable[[], Awaitable[None]]
"""Keeps an answer that a dialect has made. It is awaited before the client gets the end of the answer."""

RunRequests: TypeAlias = Callable[[EngineLike, Sequence[GenerateRequest], int], ParallelRequests]
"""Makes the `ParallelRequests` that runs some requests, of which at most a number are in the engine at a time."""


async def answer_in(
    dialect: Dialect,
    call: Call,
    body: GenerationBody,
    requests: Sequence[GenerateRequest],
    resolved: ResolvedState,
    *,
    stream_type: str = EVENT_STREAM,
    keep_alive: Callable[[], bytes] = comment,
    run: RunRequests = ParallelRequests,
    keep: Keep | None = None,
) -> Long[Body] | Stream:
    """Return the answer that `dialect` makes of the engine requests `requests`, whole or as a stream that runs them.

    All `requests` must have been checked and must start at the state `resolved`. `stream_type` is the content type of a
    stream, `keep_alive` returns what breaks its silence, `run` makes what runs the requests, and `keep` keeps the
    answer. Raises InvalidRequestError or OverloadedError before any of them runs.
    """
    if not body.stream:
        return await answer_whole(dialect.whole, call, body, requests, resolved, run=run, keep=keep)
    running, saver = await _prepare(call, body, requests, resolved, run)
    pieces = _pieces(call, dialect, running, Tally(body.copies), saver, keep)
    return Stream(pieces, stream_type, keep_alive, dialect.failure)


async def _prepare(
    call: Call,
    body: GenerationBody,
    requests: Sequence[GenerateRequest],
    resolved: ResolvedState,
    run: RunRequests,
) -> tuple[ParallelRequests, EndSaver | None]:
    """Return what runs `requests`, and what saves a state after them, if wanted."""
    engine = engine_of(call, body.cache_salt)
    seconds = body.timeout or call.app[SETTINGS].limits.max_request_seconds
    deadline = min(time.monotonic() + seconds, call.deadline)
    requests = [replace(request, deadline=deadline) for request in requests]
    saver = None if body.save_as is None else await EndSaver.create(engine, body.save_as, resolved, requests)
    if saver is not None:
        requests = [saver.call]
    return run(engine, requests, engine.info.num_slots), saver


async def answer_whole(
    make_body: Callable[[Ended], Body],
    call: Call,
    body: GenerationBody,
    requests: Sequence[GenerateRequest],
    resolved: ResolvedState,
    *,
    run: RunRequests = ParallelRequests,
    keep: Keep | None = None,
) -> Long[Body]:
    """Run engine requests, and return the answer that `make_body` makes of them when all have ended.

    See `answer_in` for the other arguments.
    """
    running, saver = await _prepare(call, body, requests, resolved, run)
    tally = Tally(body.copies)
    outcomes = [ChoiceOutcome() for _ in running.requests]
    saved: Mapping[str, object] = {}
    async with running:
        async for events in running:
            for index, event in events:
                tally.add(index, event)
                outcomes[index].add(event)
                _note_left_out(call, event)
                if saver is not None:
                    saved = await saver.note(event)

    def make() -> Body:
        return make_body(Ended(outcomes, list(_best(outcomes, body.copies, body.n)), tally.usage(), saved))

    size = sum(len(outcome.prompt) + len(outcome.tokens) for outcome in outcomes) * (1 + (body.alternatives or 0))
    return Long(size + call.lease.num_bytes, make, keep)


def _note_left_out(call: Call, event: Event) -> None:
    """Note what the event `Started` says about JSON schemas, for the header that lists what was ignored."""
    if isinstance(event, Started):
        call.left_out |= set(event.left_out)


def _best(outcomes: Sequence[ChoiceOutcome], copies: int, wanted: int) -> Iterator[int]:
    """Yield, for each prompt, the indices of its `wanted` answers with the highest mean log-probability, best first.

    If all answers are wanted, they keep their order.
    """
    for first in range(0, len(outcomes), copies):
        places = range(first, first + copies)
        yield from (
            places if wanted == copies else sorted(places, key=lambda place: -outcomes[place].mean_logprob)[:wanted]
        )


async def _pieces(
    call: Call, dialect: Dialect, running: ParallelRequests, tally: Tally, saver: EndSaver | None, keep: Keep | None
) -> AsyncGenerator[bytes, None]:
    """Run engine requests, and yield the stream that `dialect` makes of their events.

    At the last event, save the state if wanted. What comes before the last event is yielded first, since saving may
    take long. Events without text may be large, and are then encoded on another thread.
    """
    async with running:
        async for group in running:
            parts: list[bytes] = []
            for index, event in group:
                _note_left_out(call, event)
                tally.add(index, event)
                saved: Mapping[str, object] = {}
                if saver is not None:
                    if isinstance(event, Finished):
                        yield b"".join(parts)
                        parts.clear()
                    saved = await saver.note(event)
                size = call.lease.num_bytes + (len(event.tokens) if isinstance(event, PromptScored) else 0)
                encode = partial(dialect.event, index, event, saved)
                parts.append(encode() if isinstance(event, TextDelta) else await work(call, size, encode))
                if isinstance(event, Finished) and keep is not None:
                    await keep()
            yield b"".join(parts)
        yield dialect.ending(tally.usage())
