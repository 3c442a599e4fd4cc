"""Scores of given continuations of a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from rnn_engine.checks import check_token_ids
from rnn_engine.errors import InvalidRequestError
from rnn_engine.interface import EngineLike
from rnn_engine.operations.scoring import ChoiceScore, probabilities, score_choices, total_cost
from server.formatting.logprobs import token_text
from server.formatting.usage import usage_of
from server.http.bodies import long_json_response, read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.http.work import work
from server.limits import Limits
from server.schemas.choices import (
    ChoiceEntry,
    Choices,
    ChoicesRequest,
    ChoiceToken,
    Chooses,
    ChoosesEntry,
    ChoosesRequest,
    RankedChoice,
)
from server.schemas.prompt import Prompt, text_of
from server.state.resolve import resolve_initial_state


async def choices(request: web.Request) -> web.Response:
    body = await read_body(request, ChoicesRequest)
    engine = engine_of(request, body.cache_salt)
    scores = await _score(request, engine, body)

    def make() -> Choices:
        likely = probabilities(_figures(body, scores))
        ranked = _rank(engine, body, scores)
        return {
            "object": "list",
            "model": engine.info.model,
            "data": [_entry(body, choice, scores[choice["index"]], likely[choice["index"]]) for choice in ranked],
            "usage": usage_of([total_cost(scores)]),
        }

    return await long_json_response(request, _size(scores), make)


async def chooses(request: web.Request) -> web.Response:
    body = await read_body(request, ChoosesRequest)
    engine = engine_of(request, body.cache_salt)
    scores = await _score(request, engine, body)

    def make() -> Chooses:
        data: list[ChoosesEntry] = [
            {**choice, "perplexity": -scores[choice["index"]].mean} for choice in _rank(engine, body, scores)
        ]
        return {"object": "list", "model": engine.info.model, "data": data}

    return await long_json_response(request, _size(scores), make)


async def _score(request: web.Request, engine: EngineLike, body: ChoosesRequest) -> tuple[ChoiceScore, ...]:
    size = len(body.input) + sum(map(len, body.choices))
    make = partial(_context_and_options, engine, request.app[SETTINGS].limits, body)
    context, options = await work(request, size, make)
    initial_state = await resolve_initial_state(engine, body.state)
    return await score_choices(engine, context, options, initial_state=initial_state, calibrate=body.calibrate)


def _context_and_options(
    engine: EngineLike, limits: Limits, body: ChoosesRequest
) -> tuple[Sequence[int], list[Sequence[int]]]:
    """Return the tokens of the context and of each choice.

    Raises InvalidRequestError, also where they are more than `limits` allow.
    """
    context = _tokens(engine, "input", body.input)
    options = [_tokens(engine, f"choices.{number}", choice) for number, choice in enumerate(body.choices)]
    num_scored = sum(map(len, options)) * (2 if body.calibrate else 1)
    limits.check("max_prompt_tokens", "choices", len(context) * len(options) + num_scored)
    return context, options


def _size(scores: Sequence[ChoiceScore]) -> int:
    return sum(len(score.given.tokens) for score in scores)


def _tokens(engine: EngineLike, field: str, prompt: Prompt) -> Sequence[int]:
    if isinstance(prompt, str):
        return engine.tokenize(prompt) if prompt else ()
    check_token_ids(f"{field} token", prompt, engine.info.shape.vocab_size)
    return prompt


def _rank(engine: EngineLike, body: ChoosesRequest, scores: Sequence[ChoiceScore]) -> list[RankedChoice]:
    """Return the choices in order of their perplexity, least first; equal ones keep their order."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index].mean)
    return [
        {
            "object": "choice",
            "index": index,
            "rank": rank,
            "choice": text_of(engine, body.choices[index]),
        }
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


ROUTES = (
    Route(
        "POST",
        "/v1/choices",
        choices,
        "Score given continuations of a text.",
        Choices,
        request=ChoicesRequest,
    ),
    Route(
        "POST",
        "/api/oai/chooses",
        chooses,
        "Rank given continuations of a text as ai00 does, with what ai00 calls perplexity: -ln p a token.",
        Chooses,
        request=ChoosesRequest,
    ),
)
