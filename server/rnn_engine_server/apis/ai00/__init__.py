"""The routes of ai00's API that no other API has: models, files, states, and generations with ai00's defaults."""

from __future__ import annotations

from rnn_engine_server.apis.ai00 import files, generation, models, states
from rnn_engine_server.core.routing import Route

ROUTES: tuple[Route, ...] = (*generation.ROUTES, *states.ROUTES, *models.ROUTES, *files.ROUTES)
