"""Routes that score or rank given continuations of a text by their likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, NotRequired, TypeAlias

from pydantic import FailFast, Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError, check_token_ids
from rnn_engine.interface import EngineLike
from rnn_engine.operations.scoring import ChoiceScore, probabilities, score_choices, total_cost
from rnn_engine_server.apis.common.answering import usage_of
from rnn_engine_server.apis.common.generation import ONE_PROMPT, Prompt, check_prompts, text_of
from rnn_engine_server.apis.common.states import ModelBody, resolve_state
from rnn_engine_server.apis.openai.dialect import token_text
from rnn_engine_server.core.call import CALL_WORK, Call, work
from rnn_engine_server.core.handlers import Long, RouteTable
from rnn_engine_server.core.schema import (
    INTEGERS,
    NULL,
    STRING,
    STRINGS,
    Bounded,
    Parsed,
    RefusedError,
    Usage,
    is_integers,
)
from rnn_engine_server.core.settings import Limits

Figure: TypeAlias = Literal["total", "mean", "per_byte"]


def _parse_context(value: object) -> Prompt:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "".join(value)
    if is_integers(value):
        return tuple(value)
    raise RefusedError(value, "null, a string, a list of strings, which are joined, or a list of token ids")


def _parse_choice(value: object) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if is_integers(value) and value:
        return tuple(value)
    raise RefusedError(value, "a string or a list of token ids, not empty")


def _check_choices(limits: Limits, field: str, choices: Sequence[Prompt]) -> None:
    limits.check("max_choices", field, len(choices))
    check_prompts(limits, field, choices)


_Choice: TypeAlias = Annotated[Prompt, Parsed(_parse_choice, STRING, INTEGERS)]


class ChoosesRequest(ModelBody):
    """A request to rank continuations of a text by how likely they are."""

    ignored: ClassVar = frozenset({"metadata", "user"})

    input: Annotated[Prompt, Parsed(_parse_context, STRING, STRINGS, INTEGERS, NULL), ONE_PROMPT] = Field(
        default="", description="The text that the choices follow. Empty: the end of a text, or of that in `state`."
    )
    choices: Annotated[list[_Choice], FailFast(), Bounded(_check_choices)] = Field(
        min_length=1,
        description="The continuations. Each is tokenized by itself; begin it with the space before its word.",
    )
    calibrate: bool = Field(
        default=False,
        description="Subtract from each figure the one that the choice has after only `state` and the end of a text.",
    )


class ChoicesRequest(ChoosesRequest):
    """A request to score continuations of a text."""

    probability_of: Figure = Field(
        default="total", description="The figure whose softmax over the choices is `probability`."
    )
    logprobs: bool = Field(default=False, description="Add the tokens of the choices with their log-probabilities.")


class RankedChoice(TypedDict):
    """A choice (a continuation to rank) with its rank.

    `index` is its place in the request, `rank` its place in the answer, both from 0.
    """

    object: Literal["choice"]
    index: int
    rank: int
    choice: str


class ChoosesEntry(RankedChoice):
    """A ranked choice with its perplexity, as ai00 defines that: the mean of -ln p over the choice's tokens.

    Elsewhere, as in `/v1/choices`, perplexity is the exponential of this number.
    """

    perplexity: float


class Chooses(TypedDict):
    """The answer with the ranked choices: one entry for each, the least perplexity first."""

    object: Literal["list"]
    model: str
    data: list[ChoosesEntry]


class ChoiceToken(TypedDict):
    """One token of a choice, with its log-probability.

    `logprob` is not calibrated. If the choices are calibrated, `alone` is the log-probability of the token after token
    0 alone, without the context.
    """

    id: int
    token: str
    logprob: float
    alone: NotRequired[float]


class ChoiceEntry(RankedChoice):
    """One of the texts that a client offered, with its rank and the log-probabilities of its tokens.

    `total` is that of the whole choice. `mean` is `total` divided by the number of tokens, and `per_byte` is `total`
    divided by the number of bytes, null if the tokens stand for no text. `perplexity` is exp(-`mean`), null if that is
    too large for a number. `tokens` is null unless the request sets `logprobs`.
    """

    perplexity: float | None
    total: float
    mean: float
    per_byte: float | None
    probability: float
    tokens: list[ChoiceToken] | None


class Choices(TypedDict):
    """The answer with the scored choices: one entry for each, the least perplexity first.

    The usage counts the context once.
    """

    object: Literal["list"]
    model: str
    data: list[ChoiceEntry]
    usage: Usage


ROUTES = RouteTable()


@ROUTES.post("/v1/choices")
async def choices(call: Call, body: ChoicesRequest) -> Long[Choices]:
    """Score given continuations of a text."""
    engine = call.engine
    scores = await _score(call, engine, body)

    def make() -> Choices:
        likely = probabilities(_figures(body, scores))
        ranked = _rank(engine, body, scores)
        return {
            "object": "list",
            "model": engine.info.model,
            "data": [_entry(body, choice, scores[choice["index"]], likely[choice["index"]]) for choice in ranked],
            "usage": usage_of([total_cost(scores)]),
        }

    return Long(_size(scores), make)


@ROUTES.post("/api/oai/chooses")
async def chooses(call: Call, body: ChoosesRequest) -> Long[Chooses]:
    """Rank given continuations of a text as ai00 does.

    The rank is by what ai00 calls perplexity: the mean of -ln p of the tokens.
    """
    engine = call.engine
    scores = await _score(call, engine, body)

    def make() -> Chooses:
        data: list[ChoosesEntry] = [
            {**choice, "perplexity": -scores[choice["index"]].mean} for choice in _rank(engine, body, scores)
        ]
        return {"object": "list", "model": engine.info.model, "data": data}

    return Long(_size(scores), make)


async def _score(call: Call, engine: EngineLike, body: ChoosesRequest) -> tuple[ChoiceScore, ...]:
    size = len(body.input) + sum(map(len, body.choices)) + CALL_WORK * len(body.choices)
    make = partial(_context_and_options, engine, call.limits, body)
    context, options = await work(call, size, make)
    initial_state = (await resolve_state(engine, body.state)).initial_state
    return await score_choices(engine, context, options, initial_state=initial_state, calibrate=body.calibrate)


def _context_and_options(
    engine: EngineLike, limits: Limits, body: ChoosesRequest
) -> tuple[Sequence[int], list[Sequence[int]]]:
    """Return the token ids of the text before the choices, and a list with the token ids of each choice.

    Raises InvalidRequestError, also for more tokens than `limits` allow.
    """
    context = _tokens(engine, "input", body.input)
    options = [_tokens(engine, f"choices.{number}", choice) for number, choice in enumerate(body.choices)]
    num_scored = sum(map(len, options)) * (2 if body.calibrate else 1)
    limits.check("max_prompt_tokens", "choices", len(context) * len(options) + num_scored)
    return context, options


def _size(scores: Sequence[ChoiceScore]) -> int:
    return sum(len(score.given.tokens) for score in scores) + CALL_WORK * len(scores)


def _tokens(engine: EngineLike, field: str, prompt: Prompt) -> Sequence[int]:
    if isinstance(prompt, str):
        return engine.tokenize(prompt) if prompt else ()
    check_token_ids(f"{field} token", prompt, engine.info.shape.vocab_size)
    return prompt


def _rank(engine: EngineLike, body: ChoosesRequest, scores: Sequence[ChoiceScore]) -> list[RankedChoice]:
    """Return the choices ordered by perplexity, least first; choices with equal ones stay in the request's order."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index].mean)
    return [
        {"object": "choice", "index": index, "rank": rank, "choice": text_of(engine, body.choices[index])}
        for rank, index in enumerate(order)
    ]


def _entry(body: ChoicesRequest, choice: RankedChoice, score: ChoiceScore, probability: float) -> ChoiceEntry:
    return {
        **choice,
        "perplexity": score.perplexity if math.isfinite(score.perplexity) else None,
        "total": score.total,
        "mean": score.mean,
        "per_byte": score.per_byte,
        "probability": probability,
        "tokens": _token_entries(score) if body.logprobs else None,
    }


def _token_entries(score: ChoiceScore) -> list[ChoiceToken]:
    entries: list[ChoiceToken] = [
        {"id": info.token, "token": token_text(info.token, info.data), "logprob": info.logprob}
        for info in score.given.tokens
        if info.logprob is not None
    ]
    if score.alone is not None:
        for entry, alone in zip(entries, score.alone.tokens, strict=True):
            if alone.logprob is not None:
                entry["alone"] = alone.logprob
    return entries


def _figures(body: ChoicesRequest, scores: Sequence[ChoiceScore]) -> list[float]:
    match body.probability_of:
        case "total":
            return [score.total for score in scores]
        case "mean":
            return [score.mean for score in scores]
        case "per_byte":
            known = [score.per_byte for score in scores if score.per_byte is not None]
            if len(known) < len(scores):
                raise InvalidRequestError(
                    "probability_of", "per_byte", "total or mean, since a choice has tokens that stand for no text"
                )
            return known
