"""Chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, takewhile

from aiohttp import web

from rnn_engine.chat_template import Role
from rnn_engine.interface import EngineLike
from rnn_engine.operations.naming import text_before_chat
from rnn_engine.operations.positions import token_positions
from rnn_engine.requests import GenerateRequest
from server.answer import answer
from server.formatting.chat import ChatFormatter
from server.http.bodies import read_body
from server.http.context import SETTINGS, engine_of
from server.http.routing import Route
from server.http.work import CALL_WORK, work
from server.limits import Limits
from server.schemas.chat import ChatCompletion, ChatCompletionChunk, ChatRequest, Message
from server.state.resolve import ResolvedState, resolve_state

_LEAST_SYSTEM = 32  # tokens of a system text that are worth a state of their own


async def chat_completions(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, ChatRequest)
    engine = engine_of(request, body.cache_salt)
    resolved = await resolve_state(engine, body.state)
    size = body.chat_template.most_characters(body.conversation) + CALL_WORK * body.n
    calls = await work(request, size, partial(_calls, engine, request.app[SETTINGS].limits, body, resolved))
    return await answer(request, body, ChatFormatter(engine, body, calls), calls, resolved)


def _calls(engine: EngineLike, limits: Limits, body: ChatRequest, resolved: ResolvedState) -> list[GenerateRequest]:
    """Return the requests of all answers. Raises InvalidRequestError where they are more than `limits` allow."""
    template = body.chat_template
    texts = [text_before_chat(engine, resolved.frozen, template), *template.turns(body.conversation), template.ending]
    ends = list(accumulate(len(text.encode()) for text in texts))
    limits.check("max_text_bytes", "messages", ends[-1])
    prompt = engine.tokenize("".join(texts))
    limits.check("max_prompt_tokens", "messages", len(prompt) * body.n)
    turns = token_positions(engine, prompt, ends[1:-1])
    call = GenerateRequest(
        prompt=prompt,
        initial_state=resolved.initial_state,
        turn_positions=turns,
        checkpoint_positions=_checkpoint_positions(body, turns),
        max_tokens=body.max_tokens,
        stop=body.stop_bytes,
        logprobs=body.alternatives,
        penalised_prompt=_earlier_replies(engine, body),
        priority=body.priority,
    )
    call.check(engine.info.shape, engine.info.max_logprobs, engine.info.num_slots)
    return [replace(call, sampling=body.sampling(copy)) for copy in range(body.n)]


def _checkpoint_positions(body: ChatRequest, turns: Sequence[int]) -> list[int]:
    """Where a client wants the state kept, and the end of a system text, with which other conversations begin, too."""
    marked = [turn for turn, message in zip(turns, body.messages, strict=True) if message.cache]
    system = [turn for turn, _ in takewhile(_is_system, zip(turns, body.messages, strict=True))]
    return [*marked, *(turn for turn in system[-1:] if turn >= _LEAST_SYSTEM)]


def _is_system(turn: tuple[int, Message]) -> bool:
    return turn[1].role is Role.SYSTEM


def _earlier_replies(engine: EngineLike, body: ChatRequest) -> list[int]:
    """Return the tokens of earlier replies, which the penalties count."""
    replies = [message.content for message in body.messages if message.role is Role.ASSISTANT]
    return [token for reply in replies for token in engine.tokenize(reply)]


ROUTES = (
    Route(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        "Continue a conversation.",
        ChatCompletion,
        request=ChatRequest,
        chunk=ChatCompletionChunk,
    ),
)
