"""Text completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aiohttp import web

from rnn_engine.checks import check_range
from rnn_engine.interface import EngineLike
from rnn_engine.requests import GenerateRequest, SamplingParams, empty_prompt
from rnn_engine.types import InitialState
from server.answer import answer
from server.formatting.completion import CompletionFormatter
from server.http.bodies import read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.http.work import CALL_WORK, work
from server.limits import Limits
from server.schemas.completions import Completion, CompletionRequest
from server.schemas.prompt import Prompt, text_of
from server.state.resolve import resolve_state


async def completions(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, CompletionRequest)
    engine = engine_of(request, body.cache_salt)
    resolved = await resolve_state(engine, body.state)
    size = sum(map(len, body.prompt)) + CALL_WORK * len(body.prompt) * body.copies
    make = partial(_calls_and_echoes, engine, request.app[SETTINGS].limits, body, resolved.initial_state)
    calls, echoes = await work(request, size, make)
    return await answer(request, body, CompletionFormatter(engine, body, calls, echoes), calls, resolved)


def _calls_and_echoes(
    engine: EngineLike, limits: Limits, body: CompletionRequest, initial_state: InitialState | None
) -> tuple[list[GenerateRequest], list[str]]:
    """Return the requests of all answers, and with what the answers to each prompt begin.

    Raises InvalidRequestError, also where they are more than `limits` allow.
    """
    prompts = [_tokens(engine, prompt, initial_state) for prompt in body.prompt]
    num_tokens = sum(map(len, prompts)) * body.copies
    limits.check("max_prompt_tokens", "prompt", num_tokens)
    if body.echo and body.logprobs is not None:
        limits.check("max_logprob_entries", "logprobs", num_tokens * (1 + body.logprobs))
    samplings = body.samplings(body.copies, engine.tokenize)
    calls = [call for prompt in prompts for call in _copies(body, prompt, initial_state, samplings)]
    for call in calls[:: body.copies]:  # the copies of a prompt are alike
        call.check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
    return calls, [text_of(engine, prompt) if body.echo else "" for prompt in body.prompt]


def _copies(
    body: CompletionRequest,
    prompt: Sequence[int],
    initial_state: InitialState | None,
    samplings: Sequence[SamplingParams],
) -> list[GenerateRequest]:
    for position in body.marks:
        check_range("marks position", position, 0, len(prompt))
    return [
        GenerateRequest(
            prompt=prompt,
            initial_state=initial_state,
            checkpoint_positions=body.marks,
            max_tokens=body.max_tokens,
            stop=body.stop_bytes,
            sampling=sampling,
            logprobs=body.alternatives,
            score_from=0 if body.echo and body.logprobs is not None else None,
            priority=body.priority,
        )
        for sampling in samplings
    ]


def _tokens(engine: EngineLike, prompt: Prompt, initial_state: InitialState | None) -> Sequence[int]:
    """Return the tokens of a prompt; those of an empty text are `empty_prompt`. An empty list is refused later."""
    return (engine.tokenize(prompt) or empty_prompt(initial_state)) if isinstance(prompt, str) else prompt


ROUTES = (
    Route(
        "POST",
        "/v1/completions",
        completions,
        "Continue texts or tokens.",
        Completion,
        request=CompletionRequest,
        chunk=Completion,
    ),
)
