"""Routes that only ai00 has."""

from __future__ import annotations

from server.http.routing import Route
from server.routes.ai00 import admin, archives, embeds, files, generation, models, states

ROUTES: tuple[Route, ...] = (
    *generation.ROUTES,
    *states.ROUTES,
    *embeds.ROUTES,
    *models.ROUTES,
    *admin.ROUTES,
    *files.ROUTES,
    *archives.ROUTES,
)
