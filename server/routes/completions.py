"""Text completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from aiohttp import web

from rnn_engine.checks import check_range
from rnn_engine.interface import EngineLike
from rnn_engine.requests import GenerateRequest, empty_prompt
from server.answer import answer
from server.formatting.completion import CompletionFormatter
from server.http.bodies import read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.http.work import CALL_WORK, work
from server.limits import Limits
from server.schemas.completions import Completion, CompletionRequest
from server.schemas.prompt import AnyPrompt, text_of, tokens_of
from server.state.mixing import mix_calls
from server.state.resolve import ResolvedState, Start, resolve_starts


async def completions(request: web.Request) -> web.StreamResponse:
    return await complete(request, await read_body(request, CompletionRequest), CompletionFormatter)


async def complete(
    request: web.Request, body: CompletionRequest, formatter: type[CompletionFormatter]
) -> web.StreamResponse:
    """Run the prompts of `body` and answer."""
    engine = engine_of(request, body.cache_salt)
    calls, resolved = await prepare_completions(request, engine, body)
    echoes = await work(request, sum(map(len, body.prompt)) if body.echo else 0, partial(_echoes, engine, body))
    return await answer(request, body, formatter(engine, body, calls, echoes), calls, resolved)


async def prepare_completions(
    request: web.Request, engine: EngineLike, body: CompletionRequest
) -> tuple[list[GenerateRequest], ResolvedState]:
    """Return the requests of all answers, and the state that they start from.

    Raises InvalidRequestError, also where they are more than the limits allow.
    """
    starts = await resolve_starts(engine, body)
    size = sum(map(len, body.prompt)) * len(starts) + CALL_WORK * len(body.prompt) * body.copies + body.bias_characters
    make = partial(_calls, engine, request.app[SETTINGS].limits, body, starts)
    return await work(request, size, make), starts[0].resolved


def _echoes(engine: EngineLike, body: CompletionRequest) -> list[str]:
    """Return with what the answers to each prompt begin."""
    return [text_of(engine, prompt) if body.echo else "" for prompt in body.prompt]


def _calls(
    engine: EngineLike, limits: Limits, body: CompletionRequest, starts: Sequence[Start]
) -> list[GenerateRequest]:
    """Return the requests of all answers.

    Raises InvalidRequestError, also where they are more than `limits` allow.
    """
    members = [[_call(engine, body, prompt, start) for start in starts] for prompt in body.prompt]
    num_tokens = sum(len(call.prompt) for calls in members for call in calls) * body.copies
    limits.check("max_prompt_tokens", "prompt", num_tokens)
    if body.scores_prompt:
        limits.check("max_logprob_entries", "logprobs", num_tokens * (1 + (body.alternatives or 0)))
    mixes = [mix_calls(body, starts, calls) for calls in members]
    calls = body.copies_of(mixes, limits, engine.tokenize)
    for call in calls[:: body.copies]:  # the copies of a prompt are alike
        call.check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
    return calls


def _call(engine: EngineLike, body: CompletionRequest, prompt: AnyPrompt, start: Start) -> GenerateRequest:
    """Return the request for a prompt, or for that of `start`, from one state."""
    tokens = _tokens(engine, prompt if start.prompt is None else start.prompt, start)
    marks = body.marks if start.prompt is None else []
    for position in marks:
        check_range("marks position", position, 0, len(tokens))
    return GenerateRequest(
        prompt=tokens,
        initial_state=start.initial_state,
        checkpoint_positions=marks,
        max_tokens=body.max_tokens,
        stop=body.stop_bytes,
        logprobs=body.alternatives,
        score_from=0 if body.scores_prompt else None,
        grammar=body.answer_grammar,
        grammar_prefix=body.grammar_prefix_tokens,
        priority=body.priority,
    )


def _tokens(engine: EngineLike, prompt: AnyPrompt, start: Start) -> Sequence[int]:
    """Return the tokens of a prompt; those of an empty text are `empty_prompt`. An empty list is refused later."""
    tokens = tokens_of(engine, prompt)
    return (tokens or empty_prompt(start.initial_state)) if isinstance(prompt, str) else tokens


ROUTES = (
    Route(
        "POST",
        "/v1/completions",
        completions,
        "Continue texts or tokens.",
        Completion,
        request=CompletionRequest,
        chunk=Completion,
        ai00_paths=False,
    ),
)
