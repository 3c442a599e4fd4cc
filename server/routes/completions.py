"""Texts and tokens to continue."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from rnn_engine.interface import EngineLike
from rnn_engine.requests import GenerateRequest
from server.answer import answer
from server.body import read_body
from server.completion_form import CompletionForm
from server.keys import ENGINE
from server.routing import Route
from server.schemas.completions import Completion, CompletionRequest, Prompt

_EMPTY_PROMPT = (0,)  # the token that ends a text also begins one


async def completions(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    body = await read_body(request, CompletionRequest)
    calls = [call for prompt in body.prompt for call in _copies(body, _tokens(engine, prompt))]
    echoes = [_text(engine, prompt) if body.echo else "" for prompt in body.prompt for _ in range(body.n)]
    return await answer(request, body, CompletionForm(engine, body, calls, echoes), calls)


def _copies(body: CompletionRequest, prompt: Sequence[int]) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            prompt=prompt,
            max_tokens=body.max_tokens,
            stop=body.stop_bytes,
            sampling=body.sampling(copy),
            logprobs=body.logprobs,
            score_from=0 if body.echo and body.logprobs is not None else None,
        )
        for copy in range(body.n)
    ]


def _tokens(engine: EngineLike, prompt: Prompt) -> Sequence[int]:
    return (engine.tokenize(prompt) or _EMPTY_PROMPT) if isinstance(prompt, str) else prompt


def _text(engine: EngineLike, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else engine.detokenize(prompt).decode(errors="replace")


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
