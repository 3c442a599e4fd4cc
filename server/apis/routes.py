"""The list of all routes of the server, API by API."""

from __future__ import annotations

from server import web
from server.apis import ai00, astrai, llama_server, realizar, tgi
from server.apis.anthropic import routes as anthropic
from server.apis.engine import cache, choices, state_comparison, state_files, states, status, tokens
from server.apis.ollama import routes as ollama
from server.apis.openai import chat, completions, conversations, embeddings, models, responses
from server.core.routing import Route
from server.openapi import routes as document

ALL_ROUTES: tuple[Route, ...] = (
    *ai00.ROUTES,
    *models.ROUTES,
    *completions.ROUTES,
    *chat.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *ollama.LIBRARY_ROUTES,
    *responses.ROUTES,
    *conversations.ROUTES,
    *choices.ROUTES,
    *embeddings.ROUTES,
    *states.ROUTES,
    *state_files.ROUTES,
    *state_comparison.ROUTES,
    *tokens.ROUTES,
    *llama_server.ROUTES,
    *tgi.ROUTES,
    *realizar.ROUTES,
    *astrai.ROUTES,
    *cache.ROUTES,
    *status.ROUTES,
    *document.ROUTES,
    *web.ROUTES,
)
