"""Routes that only ai00 has."""

from __future__ import annotations

from server.http.routing import Route
from server.routes.ai00 import admin, files, models

ROUTES: tuple[Route, ...] = (*models.ROUTES, *admin.ROUTES, *files.ROUTES)
