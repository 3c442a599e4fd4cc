"""Routes that only ai00 has."""

from __future__ import annotations

from server.apis.ai00 import files, generation, models, states
from server.core.routing import Route

ROUTES: tuple[Route, ...] = (*generation.ROUTES, *states.ROUTES, *models.ROUTES, *files.ROUTES)
