"""Score continuations (choices) of a context by their log-probabilities under the model, in parallel.

Every choice is a request of its own for the context and the choice, scored from the context's end. An engine with a
state cache runs the context once, and every choice from a copy of the state after it. An engine without one returns the
same scores, but takes longer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rnn_engine.errors import InvalidRequestError, StepError, check_token_ids
from rnn_engine.interface import EngineLike
from rnn_engine.operations.parallel import Cost, Ended, run_each
from rnn_engine.requests import GenerateRequest, TokenInfo, empty_prompt
from rnn_engine.types import InitialState


@dataclass(frozen=True, slots=True)
class Continuation:
    """The tokens of one continuation of a context, each with its log-probability given everything before it."""

    tokens: tuple[TokenInfo, ...]
    cost: Cost  # of context and tokens

    @property
    def total(self) -> float:
        return math.fsum(info.logprob for info in self.tokens if info.logprob is not None)


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The score of one choice: the log-probability of this continuation after the context.

    A calibrated score is reduced by the choice's log-probability after an empty text. A choice then stands out by what
    the context adds to it, not because it is a likely text anyway.
    """

    given: Continuation  # the choice after the context
    alone: Continuation | None = None  # the choice after an empty text, if calibrated

    @property
    def total(self) -> float:
        """The choice's log-probability after the context; if calibrated, minus that after an empty text."""
        return self.given.total - (0.0 if self.alone is None else self.alone.total)

    @property
    def mean(self) -> float:
        return self.total / len(self.given.tokens)

    @property
    def per_byte(self) -> float | None:
        """The choice's log-probability (`total`) divided by its bytes of UTF-8; None if its tokens have no text."""
        num_bytes = sum(len(info.data) for info in self.given.tokens)
        return self.total / num_bytes if num_bytes > 0 else None

    @property
    def perplexity(self) -> float:
        """The perplexity after the context, exp(-mean), divided by that after no text if calibrated; maybe infinite."""
        try:
            return math.exp(-self.mean)
        except OverflowError:
            return math.inf


async def score_choices(
    engine: EngineLike,
    context: Sequence[int],
    choices: Sequence[Sequence[int]],
    *,
    initial_state: InitialState | None = None,
    calibrate: bool = False,
) -> tuple[ChoiceScore, ...]:
    """Return the score of each of `choices`, which are lists of token ids, as a continuation of `context`.

    The scores are in the order of `choices`. Except for rounding, a score does not depend on the other choices: in a
    step of another size, sums are added up in another order, which changes a token's log-probability by `MOST_ROUNDING`
    at most.

    The context begins from `initial_state`. If `calibrate` is set, each choice is also scored after an empty text, from
    the same state. An empty context is the end of a text, unless `initial_state` has logits to continue from. A
    choice's tokens simply follow. If the text of both would be tokenised differently as a whole, put the boundary
    elsewhere, best before a space. Raises InvalidRequestError, or OverloadedError if the queue is full, before anything
    runs.
    """

    def make() -> list[GenerateRequest]:
        calls = _calls(engine, Context(context, initial_state), choices)
        alone = Context((engine.info.end_of_text,), initial_state)
        return calls + (_calls(engine, alone, choices) if calibrate else [])

    calls = await asyncio.to_thread(make)
    found = await _score(engine, calls)
    given, alone = found[: len(choices)], found[len(choices) :]
    return tuple(ChoiceScore(*runs) for runs in (zip(given, alone, strict=True) if calibrate else zip(given)))


@dataclass(frozen=True, slots=True)
class Context:
    """A context's tokens and state. The cache prefers the states at `checkpoint_positions` to others."""

    tokens: Sequence[int]
    initial_state: InitialState | None = None
    checkpoint_positions: Sequence[int] = ()


async def score_after(
    engine: EngineLike, contexts: Sequence[Context], continuations: Sequence[Sequence[int]]
) -> tuple[tuple[Continuation, ...], ...]:
    """Return the scores of all `continuations` after each of `contexts`. Errors are as for `score_choices`."""

    def make() -> list[GenerateRequest]:
        return [call for context in contexts for call in _calls(engine, context, continuations)]

    found = await _score(engine, await asyncio.to_thread(make))
    size = len(continuations)
    return tuple(tuple(found[start : start + size]) for start in range(0, len(found), size))


async def score_pairs(
    engine: EngineLike,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    initial_state: InitialState | None = None,
    alternatives: int = 0,
) -> list[Continuation]:
    """Return the score of each pair's second list of token ids as a continuation of its first, in their order.

    Each token has the log-probabilities of the `alternatives` likeliest tokens in its place. Pairs that begin alike
    are best next to each other. `initial_state` and errors are as for `score_choices`.
    """

    def make() -> list[GenerateRequest]:
        calls = (_calls(engine, Context(context, initial_state), [after]) for context, after in pairs)
        return [replace(call, logprobs=alternatives) for [call] in calls]

    return await _score(engine, await asyncio.to_thread(make))


def probabilities(figures: Sequence[float]) -> list[float]:
    """Return the probability of each choice, given that exactly one is the answer: the softmax of log-probabilities."""
    greatest = max(figures)
    weights = [math.exp(figure - greatest) for figure in figures]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]


def total_cost(scores: Sequence[ChoiceScore]) -> Cost:
    """Return the prompt tokens of a call of `score_choices` that returned `scores`; the context counts once."""
    shared = [shared_cost([score.given for score in scores])]
    alone = [score.alone for score in scores if score.alone is not None]
    shared += [shared_cost(alone)] if alone else []
    return Cost(sum(cost.prompt_tokens for cost in shared), sum(cost.cached_tokens for cost in shared))


def shared_cost(runs: Sequence[Continuation]) -> Cost:
    """Return the cost of `runs` with one context: its tokens count once, the cached ones as of the first run."""
    context = runs[0].cost.prompt_tokens - len(runs[0].tokens)
    tokens = context + sum(len(run.tokens) for run in runs)
    return Cost(tokens, min(run.cost.cached_tokens for run in runs))


def _calls(engine: EngineLike, context: Context, choices: Sequence[Sequence[int]]) -> list[GenerateRequest]:
    """Return a request for each of `choices` after a context. Raises InvalidRequestError for a wrong token."""
    vocab_size = engine.info.shape.vocab_size
    check_token_ids("context token", context.tokens, vocab_size)
    if len(choices) == 0:
        raise InvalidRequestError("choices", [], "at least one choice")
    for number, choice in enumerate(choices):
        if len(choice) == 0:
            raise InvalidRequestError(f"choices.{number}", list(choice), "at least one token")
        check_token_ids(f"choices.{number} token", choice, vocab_size)
    begun = context.tokens or empty_prompt(engine.info.end_of_text, context.initial_state)
    return [
        GenerateRequest(
            prompt=(*begun, *choice),
            initial_state=context.initial_state,
            checkpoint_positions=context.checkpoint_positions,
            max_tokens=0,
            logprobs=0,
            score_from=len(begun),
        )
        for choice in choices
    ]


async def _score(engine: EngineLike, calls: Sequence[GenerateRequest]) -> list[Continuation]:
    ended = {number: each async for number, each in run_each(engine, calls)}
    in_order = [ended[number] for number in range(len(calls))]
    return await asyncio.to_thread(list, map(_continuation, in_order))  # there may be a million tokens


def _continuation(ended: Ended) -> Continuation:
    for info in ended.scored:
        if info.logprob is None or not math.isfinite(info.logprob):
            raise StepError(f"the log-probability of token {info.token} is {info.logprob}; expected a finite number")
    return Continuation(ended.scored, ended.cost)
