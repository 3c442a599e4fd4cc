"""All routes of the server, one group a file."""

from __future__ import annotations

from server.http.routing import Route
from server.routes import (
    ai00,
    anthropic,
    api_document,
    cache,
    chat,
    choices,
    completions,
    conversations,
    embeddings,
    health,
    llama_server,
    metrics,
    models,
    ollama,
    ollama_library,
    props,
    realizar,
    responses,
    state_files,
    states,
    tgi,
    tokens,
)

ALL_ROUTES: tuple[Route, ...] = (
    *ai00.ROUTES,
    *models.ROUTES,
    *completions.ROUTES,
    *chat.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *ollama_library.ROUTES,
    *responses.ROUTES,
    *conversations.ROUTES,
    *choices.ROUTES,
    *embeddings.ROUTES,
    *states.ROUTES,
    *state_files.ROUTES,
    *tokens.ROUTES,
    *llama_server.ROUTES,
    *tgi.ROUTES,
    *realizar.ROUTES,
    *cache.ROUTES,
    *props.ROUTES,
    *health.ROUTES,
    *api_document.ROUTES,
    *metrics.ROUTES,
)
