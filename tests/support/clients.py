"""Clients of a scheduler: the events that each receives, and those that it should receive by a simple loop."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from rnn_engine.errors import RnnEngineError
from rnn_engine.requests import (
    EndState,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    PromptScored,
    Started,
    TextDelta,
    TokenInfo,
)
from rnn_engine.sampling.masks import Mask
from rnn_engine.sampling.ranking import LogitRow, top_logprobs
from rnn_engine.sampling.sequence_sampler import SequenceSampler
from rnn_engine.scheduler import NO_DRAFTS, Delivery, DraftSettings, Scheduler
from rnn_engine.scheduler.slots import LEAST_TOKENS
from rnn_engine.types import F32, InitialState, ReadyState
from rnn_engine_states.cache.cache import StateCache
from tests.support.fake_runner import FakeRunner, Logits, Tokens, marked
from tests.support.mixed_rows import mixed_logits
from tests.support.plain_search import first_stop
from tests.support.scheduler_books import check_scheduler, count_late


@dataclass
class Heard:
    """All events that one client received, in order."""

    events: list[Event] = field(default_factory=list)
    error: RnnEngineError | None = None

    @property
    def ended(self) -> bool:
        return self.error is not None or bool(self.events and isinstance(self.events[-1], Finished))

    @property
    def cached_tokens(self) -> int:
        started = self.events[0]
        assert isinstance(started, Started)
        return started.cached_tokens

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def tokens(self) -> list[TokenInfo]:
        return [info for event in self.events if isinstance(event, TextDelta) for info in event.tokens]

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last


@dataclass
class Clients:
    """Clients that send requests to a scheduler and keep the events that come back.

    By their clock no step is short. With `run_ahead` all are short, and steps are submitted before others are done.
    """

    runner: FakeRunner
    token_bytes: Callable[[int], bytes]
    cache: StateCache | None = None
    run_ahead: bool = False
    drafts: DraftSettings = NO_DRAFTS
    least_tokens: int = LEAST_TOKENS
    mask_seconds: float = 60.0
    heard: dict[int, Heard] = field(default_factory=dict)
    requests: dict[int, GenerateRequest] = field(default_factory=dict)
    num_sent: int = 0

    def __post_init__(self) -> None:
        self._fetched = threading.Event()
        clock = (lambda: 0.0) if self.run_ahead else itertools.count().__next__
        self.scheduler = Scheduler(
            self.runner,
            self.token_bytes,
            self.cache,
            self.runner.num_slots - len(self.drafts.spare_slots),
            clock=clock,
            wake=self._fetched.set,
            drafts=self.drafts,
            least_tokens=self.least_tokens,
            mask_seconds=self.mask_seconds,
        )

    def after(self, tokens: Tokens, *, logits: bool = True) -> InitialState:
        """Return a state to start from, which has taken in `tokens`."""
        return InitialState(
            f"after {tokens}", self.runner.make_state(tokens), self.runner.logits(tokens) if logits else None
        )

    def send(self, request: GenerateRequest) -> int:
        key = self.num_sent
        self.num_sent += 1
        self.heard[key] = Heard()
        self.requests[key] = request
        self.scheduler.submit(key, request)
        return key

    def step(self) -> list[Delivery]:
        deliveries = self.scheduler.step()
        check_scheduler(self.scheduler)
        self.take(deliveries)
        return deliveries

    def take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            heard = self.heard[delivery.key]
            assert not heard.ended, f"request {delivery.key} hears {delivery.outcome} after its end"
            if isinstance(delivery.outcome, RnnEngineError):
                heard.error = delivery.outcome
            else:
                heard.events.append(delivery.outcome)
            if isinstance(delivery.outcome, Finished) and delivery.outcome.end is not None:
                self._check_end(self.requests[delivery.key], delivery.outcome.end)

    def run(self, max_steps: int = 1000) -> int:
        """Step until there is no request; return the number of steps."""
        for steps in range(max_steps):
            if not self.scheduler.has_work:
                if self.scheduler.num_waiting == 0 and count_late(self.scheduler) == 0:
                    return steps
                self.wait_for_fetch()
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def wait_for_fetch(self) -> None:
        """Return when a state has been read, or a late mask made, since the last call."""
        assert self._fetched.wait(timeout=60)
        self._fetched.clear()

    def ask(self, request: GenerateRequest) -> Heard:
        """Send one request and run until all are done."""
        key = self.send(request)
        self.run()
        return self.heard[key]

    def _check_end(self, request: GenerateRequest, end: EndState) -> None:
        start = request.initial_state
        before, lora = ((), None) if start is None else (self.runner.tokens_of(start.state), start.lora)
        assert self.runner.tokens_of(end.state) == before + marked(end.tokens, lora)


def run_alone(
    request: GenerateRequest,
    all_logits: Logits,
    token_bytes: Callable[[int], bytes],
    before: Tokens = (),
    others: Sequence[Tokens] = (),
) -> Heard:
    """Return the events that the client of `request` should receive, except the number of cached tokens.

    The request starts from the state after `before`. `others` are the tokens that the other states of its mix have
    taken in.
    The whole text comes in one piece, and the end without its state. The request must have a seed.
    """

    start = request.initial_state

    def own_logits(tokens: Tokens) -> F32:
        return all_logits(before + marked(tokens, None if start is None else start.lora))

    logits = own_logits if request.mix is None else mixed_logits(request, all_logits, (before, *others))
    seed = request.sampling.seed
    assert seed is not None
    events: list[Event] = [Started(len(request.prompt), cached_tokens=0)]
    if request.score_from is not None:
        events.append(PromptScored(tuple(_score_prompt(request, logits, token_bytes))))
    sampler = SequenceSampler(request.sampling, seed, request.sampling_context(len(all_logits(before)), token_bytes))
    mask = None if request.token_mask is None else request.token_mask()
    tokens = list(request.prompt)
    infos: list[TokenInfo] = []
    text = b""
    stop: bytes | int | None = None
    stop_token: TokenInfo | None = None
    ended = False
    while stop is None and not ended and len(tokens) < len(request.prompt) + request.max_tokens:
        forced = () if mask is None or request.mix is not None else mask.forced()
        row = _row(logits, tokens, None if mask is None or forced else mask.next())
        if forced:
            token = forced[0]
            sampler.given(token)
        else:
            token = sampler.draw(row).token
        tokens.append(token)
        if mask is not None:
            mask.accept(token)
        logprob = None if request.logprobs is None else _logprob(row, token)
        info = TokenInfo(token, token_bytes(token), logprob, top_logprobs(row, request.logprobs or 0))
        if token in request.stop_tokens:
            stop, stop_token = token, None if request.logprobs is None else info
        else:
            infos.append(info)
            free = b"".join(info.data for info in infos[: request.min_tokens])
            text, stop = first_stop(b"".join(info.data for info in infos[request.min_tokens :]), request.stop_bytes)
            text = free + text
            ended = mask is not None and mask.ended
    if text or infos:
        events.append(TextDelta(text.decode("utf-8", errors="replace"), tuple(infos)))
    taken_in = tuple(tokens if stop is None else tokens[:-1])
    end = EndState(taken_in, ReadyState({}), own_logits(taken_in)) if request.keep_end else None
    reason: FinishReason = "length" if stop is None and not ended else "stop"
    events.append(Finished(reason, len(tokens) - len(request.prompt), seed, stop, end, stop_token))
    return Heard(events)


def assert_heard(heard: Heard, expected: Heard) -> None:
    """Assert that both are equal, except the cuts of the text, the cached tokens and rounded log-probabilities."""
    assert heard.error is None
    assert heard.text == expected.text
    assert_same_end(heard.finished, expected.finished)
    assert_same_tokens(heard.tokens, expected.tokens)
    others = [event for event in heard.events if not isinstance(event, TextDelta)]
    expected_others = [event for event in expected.events if not isinstance(event, TextDelta)]
    assert [type(event) for event in others] == [type(event) for event in expected_others]
    for event, expected_event in zip(others, expected_others, strict=True):
        if isinstance(event, PromptScored) and isinstance(expected_event, PromptScored):
            assert_same_tokens(event.tokens, expected_event.tokens)
        if isinstance(event, Started) and isinstance(expected_event, Started):
            assert event.prompt_tokens == expected_event.prompt_tokens


def assert_same_end(finished: Finished, expected: Finished) -> None:
    """Assert that both are equal, except the state and a rounded last log-probability. `Clients` checks the state."""
    assert replace(finished, end=None, stop_token=None) == replace(expected, end=None, stop_token=None)
    assert_same_tokens(_stop_tokens(finished), _stop_tokens(expected))
    assert (finished.end is None) == (expected.end is None)
    if finished.end is not None and expected.end is not None:
        assert finished.end.tokens == expected.end.tokens
        np.testing.assert_array_equal(finished.end.logits, expected.end.logits)


def _stop_tokens(finished: Finished) -> list[TokenInfo]:
    return [] if finished.stop_token is None else [finished.stop_token]


def assert_same_tokens(infos: Sequence[TokenInfo], expected: Sequence[TokenInfo]) -> None:
    assert [(info.token, info.data) for info in infos] == [(info.token, info.data) for info in expected]
    assert [info.logprob for info in infos] == pytest.approx([info.logprob for info in expected], abs=1e-4)
    for info, expected_info in zip(infos, expected, strict=True):
        assert [token for token, _ in info.top] == [token for token, _ in expected_info.top]
        assert [value for _, value in info.top] == pytest.approx([value for _, value in expected_info.top], abs=1e-4)


def _score_prompt(request: GenerateRequest, logits: Logits, token_bytes: Callable[[int], bytes]) -> list[TokenInfo]:
    assert request.score_from is not None
    return [_score(request, place, logits, token_bytes) for place in range(request.score_from, len(request.prompt))]


def _score(request: GenerateRequest, place: int, logits: Logits, token_bytes: Callable[[int], bytes]) -> TokenInfo:
    token = request.prompt[place]
    if place == 0 and (request.initial_state is None or request.initial_state.logits is None):
        return TokenInfo(token, token_bytes(token), None)
    row = _row(logits, list(request.prompt[:place]))
    return TokenInfo(token, token_bytes(token), _logprob(row, token), top_logprobs(row, request.logprobs or 0))


def _row(logits: Logits, tokens: list[int], mask: Mask | None = None) -> LogitRow:
    full = logits(tuple(tokens))
    return LogitRow.of_full(full, len(full), mask)


def _logprob(row: LogitRow, token: int) -> float:
    return float(row.logits[np.flatnonzero(row.ids == token)[0]]) - row.logsumexp
