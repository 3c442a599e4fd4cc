"""Anthropic's API: messages, and the count of their tokens."""

from __future__ import annotations

from aiohttp import web

from server.answer import answer_in
from server.formatting.anthropic import AnthropicDialect, anthropic_error
from server.http.bodies import json_response, read_body
from server.http.context import engine_of
from server.http.routing import Route
from server.routes.chat import prepare_chat
from server.schemas.anthropic.answer import AnthropicAnswer, AnthropicEvent, TokenCount
from server.schemas.anthropic.messages import CountTokensRequest, MessagesRequest


async def messages(request: web.Request) -> web.StreamResponse:
    body = await read_body(request, MessagesRequest)
    engine = engine_of(request, body.cache_salt)
    calls, form, resolved = await prepare_chat(request, engine, body.chat)
    return await answer_in(AnthropicDialect(engine.info, form, body.stop), request, body.chat, calls, resolved)


async def count_tokens(request: web.Request) -> web.Response:
    body = await read_body(request, CountTokensRequest)
    [call], _, _ = await prepare_chat(request, engine_of(request, body.cache_salt), body.chat)
    return json_response({"input_tokens": len(call.prompt)})


ROUTES = (
    Route(
        "POST",
        "/v1/messages",
        messages,
        "Continue a conversation, as Anthropic's API does. Errors come in its words, too.",
        AnthropicAnswer,
        request=MessagesRequest,
        chunk=AnthropicEvent,
        ai00_paths=False,
        error_form=anthropic_error,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "The number of tokens of a conversation, as Anthropic's API tells it.",
        TokenCount,
        request=CountTokensRequest,
        ai00_paths=False,
        error_form=anthropic_error,
    ),
)
