"""Generations under ai00's own paths."""

from __future__ import annotations

from aiohttp import web

from server.formatting.ai00 import Ai00CompletionFormatter
from server.http.bodies import read_body
from server.http.routing import Route
from server.routes.chat import converse
from server.routes.completions import complete
from server.schemas.ai00.generation import Ai00ChatRequest, Ai00CompletionChunk, Ai00CompletionRequest
from server.schemas.chat_answer import ChatCompletion, ChatCompletionChunk
from server.schemas.completions import Completion


async def completions(request: web.Request) -> web.StreamResponse:
    return await complete(request, await read_body(request, Ai00CompletionRequest), Ai00CompletionFormatter)


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await converse(request, await read_body(request, Ai00ChatRequest))


ROUTES = (
    Route(
        "POST",
        "/api/oai/completions",
        completions,
        "Continue a text, as ai00 does: a list of texts is one.",
        Completion,
        request=Ai00CompletionRequest,
        chunk=Ai00CompletionChunk,
    ),
    Route(
        "POST",
        "/api/oai/chat/completions",
        chat_completions,
        "Continue a conversation, with ai00's defaults.",
        ChatCompletion,
        request=Ai00ChatRequest,
        chunk=ChatCompletionChunk,
    ),
)
