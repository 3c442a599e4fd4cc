"""Every route that the server has, one group a file."""

from __future__ import annotations

from server.routes import cache, chat, completions, embeddings, health, models, tokens
from server.routing import Route

ALL_ROUTES: tuple[Route, ...] = (
    *models.ROUTES,
    *completions.ROUTES,
    *chat.ROUTES,
    *embeddings.ROUTES,
    *tokens.ROUTES,
    *cache.ROUTES,
    *health.ROUTES,
)
