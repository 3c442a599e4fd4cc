"""Run the engine requests of one call that generates text, and answer it at once or as a stream of events."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from rnn_engine.chat_template.answer import AnswerForm, AnswerReader
from rnn_engine.interface import EngineLike
from rnn_engine.operations.parallel import Cost, Numbered, ParallelRequests
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
from rnn_engine_server.core import handlers
from rnn_engine_server.core.call import SHORT_WORK, Call
from rnn_engine_server.core.errors import Failure
from rnn_engine_server.core.handlers import SSE, Long, Piece, Stream, StreamForm
from rnn_engine_server.core.schema import Timings, Usage


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


@dataclass(slots=True)
class Outcome:
    """What is known of one engine request from its events so far. Text and tokens are kept of whole answers alone."""

    begun: float | None = None  # when its prompt was first reported to run, by `time.monotonic` like the next two
    progressed: float = 0.0  # when it was last reported
    ended: float = 0.0
    started: Started | None = None
    finished: Finished | None = None
    num_tokens: int = 0  # of the answer
    prompt: tuple[TokenInfo, ...] = ()  # empty unless the prompt was scored
    text: str = ""
    tokens: list[TokenInfo] = field(default_factory=list)

    def add(self, event: Event, *, keeps_text: bool) -> None:
        match event:
            case PromptProgress():
                self.progressed = time.monotonic()
                self.begun = self.begun or self.progressed
            case Started():
                self.started = event
            case PromptScored():
                self.prompt = event.tokens
            case TextDelta():
                self.num_tokens += len(event.tokens)
                if keeps_text:
                    self.text += event.text
                    self.tokens.extend(event.tokens)
            case Finished():
                self.finished, self.ended = event, time.monotonic()
                self.num_tokens = event.completion_tokens

    @property
    def end(self) -> Finished:
        """The last event of the engine request, which must have ended."""
        assert self.finished is not None
        return self.finished

    @property
    def prompt_tokens(self) -> int:
        """The tokens of the prompt; 0 before the engine request has started."""
        return 0 if self.started is None else self.started.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """The tokens of the prompt that were not run."""
        return 0 if self.started is None else self.started.cached_tokens

    def times(self, event: Event | None = None, *, with_each: bool = False) -> Mapping[str, Any]:
        """Return the fields that report progress and times: `prompt_progress`, `timings`, both or none.

        They are those of the whole answer or, with an `event` that was added last, those to stream with it. With
        `with_each`, times come with each event, and not only with the last.
        """
        if isinstance(event, PromptProgress):
            return self._progress(event, with_times=with_each)
        is_last = event is None or isinstance(event, Finished)
        timings = self._timings() if is_last or (with_each and isinstance(event, TextDelta)) else None
        return {} if timings is None else {"timings": timings}

    def _progress(self, event: PromptProgress, *, with_times: bool) -> Mapping[str, object]:
        cached, seconds = event.cached_tokens, self.progressed - (self.begun or 0.0)
        progress = {
            "total": event.prompt_tokens,
            "cache": cached,
            "processed": event.processed_tokens,
            "time_ms": 1000 * seconds,
        }
        timings = {"timings": _rates(cached, event.processed_tokens - cached, seconds, 0, 0.0)} if with_times else {}
        return {"prompt_progress": progress, **timings}

    def _timings(self) -> Timings | None:
        """Return the field `timings`, or None if the engine has measured no times."""
        timing = None if self.started is None else self.started.timing
        if timing is None:
            return None
        prompt_tokens, prompt_seconds = self.prompt_tokens - self.cached_tokens, timing.first_token - timing.started
        predicted_seconds = max((self.ended or time.monotonic()) - timing.first_token, 0.0)
        timings = _rates(self.cached_tokens, prompt_tokens, prompt_seconds, self.num_tokens, predicted_seconds)
        if self.finished is not None and self.finished.draft_tokens > 0:
            timings["draft_n"], timings["draft_n_accepted"] = self.finished.draft_tokens, self.finished.accepted_tokens
        return timings

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


B = TypeVar("B", bound=GenerationBody, covariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared(Generic[B]):
    """The engine requests of a call, which have been checked, and what they were made of."""

    call: Call
    body: B
    requests: Sequence[GenerateRequest]  # as many for each prompt as it has answers
    start: ResolvedState  # from which all start
    form: AnswerForm = AnswerForm(divides_thoughts=False, strips=False)
    """Which parts, such as thoughts and calls, to look for in an answer. By default it is only text."""


Body: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]]
"""The body of an answer."""

Keep: TypeAlias = Callable[[], Awaitable[None]]
"""Keeps an answer that a dialect has made. It is awaited before the client gets the end of the answer."""


class Dialect(ABC, Generic[B]):
    """Runs the engine requests of a call and answers it in the form of an API: one body, or a stream of events."""

    stream_form: ClassVar[StreamForm] = SSE

    def __init__(self, prepared: Prepared[B]) -> None:
        self.prepared = prepared
        self.engine: EngineLike = prepared.call.engine
        self.body = prepared.body
        self.outcomes = [Outcome() for _ in prepared.requests]
        """One for each engine request, which has the events so far, also that for which a method is called."""
        self.readers = [AnswerReader(prepared.form) for _ in prepared.requests]

    @abstractmethod
    def whole(self, kept: Sequence[int], extra: Mapping[str, object]) -> Body:
        """Return the body of an answer that is not streamed, with the fields `extra` added.

        `kept` are the indices of the outcomes to return, in their order.
        """

    def events(self, index: int, event: Event, extra: Mapping[str, object]) -> Iterable[handlers.Event]:  # noqa: ARG002
        """Return what a stream tells of an event of engine request `index`, with the fields `extra` added.

        The method is called for every event, in the order of the events. By default nothing is told.
        """
        return ()

    def ending(self) -> Iterable[handlers.Event]:
        """Return the events that end a stream which has not failed; by default none."""
        return ()

    def failure(self, failure: Failure) -> handlers.Event | None:  # noqa: ARG002
        """Return the last event of a stream that fails; None = the body of the route's errors."""
        return None

    keep_alive: Callable[[], handlers.Event] | None = None
    """Returns the event that breaks a long silence of a stream; None = that of the form."""

    def groups(self, running: ParallelRequests) -> AsyncIterator[list[Numbered]]:
        """Return the events of the engine requests as they come."""
        return aiter(running)

    @property
    def usage(self) -> Usage:
        """The token counts of the answer so far. A prompt counts once, even if it has several answers."""
        firsts = self.outcomes[:: self.body.copies]
        prompt, cached = (sum(each.prompt_tokens for each in firsts), sum(each.cached_tokens for each in firsts))
        return _usage(prompt, cached, sum(each.num_tokens for each in self.outcomes))

    async def answer(self, keep: Keep | None = None) -> Long[Body] | Stream:
        """Return the answer, whole or as a stream that runs the engine requests. `keep` keeps it.

        Raises InvalidRequestError or OverloadedError before any of them runs.
        """
        call, body, engine = self.prepared.call, self.body, self.engine
        seconds = body.timeout or call.limits.max_request_seconds
        deadline = min(time.monotonic() + seconds, call.deadline)
        requests = [replace(request, deadline=deadline) for request in self.prepared.requests]
        saver = None
        if body.save_as is not None:
            saver = await EndSaver.create(engine, body.save_as, self.prepared.start, requests)
            requests = [saver.call]
        running = ParallelRequests(engine, requests, engine.info.num_slots)
        if body.stream:
            return Stream(self._pieces(running, saver, keep), self.stream_form, self.keep_alive, self.failure)
        extra: Mapping[str, object] = {}
        async with running:
            async for group in self.groups(running):
                for index, event in group:
                    self._note(index, event)
                    extra = {} if saver is None else await saver.note(event)
        num_tokens = sum(len(outcome.prompt) + len(outcome.tokens) for outcome in self.outcomes)
        size = call.lease.num_bytes + num_tokens * (1 + (body.alternatives or 0))
        return Long(size, lambda: self.whole(list(self._best()), extra), keep)

    async def _pieces(
        self, running: ParallelRequests, saver: EndSaver | None, keep: Keep | None
    ) -> AsyncGenerator[Piece, None]:
        """Run engine requests, and yield what is told of their events.

        At the last event, save the state if wanted. What comes before the last event is yielded first, since saving may
        take long. Events without text may be large, and are then made and encoded on another thread.
        """
        async with running:
            async for group in self.groups(running):
                told: list[handlers.Event] = []
                for index, event in group:
                    self._note(index, event)
                    if isinstance(event, TextDelta) and saver is None:
                        told += self.events(index, event, {})
                        continue
                    if saver is not None and isinstance(event, Finished):
                        yield told
                        told = []
                    saved = {} if saver is None else await saver.note(event)
                    size = self.prepared.call.lease.num_bytes * (not isinstance(event, TextDelta))
                    size += len(event.tokens) if isinstance(event, PromptScored) else 0
                    then = keep if isinstance(event, Finished) else None
                    if size <= SHORT_WORK and then is None:
                        told += self.events(index, event, saved)
                    else:
                        yield told
                        yield Long(size, partial(self.events, index, event, saved), then)
                        told = []
                yield told
            yield list(self.ending())

    def _note(self, index: int, event: Event) -> None:
        self.outcomes[index].add(event, keeps_text=not self.body.stream)
        if isinstance(event, Started):
            self.prepared.call.left_out |= set(event.left_out)  # of its JSON schemas

    def _best(self) -> Iterator[int]:
        """Yield, for each prompt, the indices of its `n` answers with the highest mean log-probability, best first.

        If all answers are wanted, they keep their order.
        """
        wanted, copies = self.body.n, self.body.copies
        for first in range(0, len(self.outcomes), copies):
            places = range(first, first + copies)
            yield from (
                places
                if wanted == copies
                else sorted(places, key=lambda place: -self.outcomes[place].mean_logprob)[:wanted]
            )
