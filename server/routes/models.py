"""The models that are served."""

from __future__ import annotations

from aiohttp import web

from server.formatting.models import model_entry
from server.http.bodies import json_response
from server.http.context import MODELS
from server.http.routing import Route
from server.schemas.models import ModelEntry, ModelList


async def list_models(request: web.Request) -> web.Response:
    models = request.app[MODELS]
    body: ModelList = {"object": "list", "data": [model_entry(model) for model in models if model.info is not None]}
    return json_response(body)


async def get_model(request: web.Request) -> web.Response:
    return json_response(model_entry(request.app[MODELS].find(request.match_info["model"])))


ROUTES = (
    Route(
        "GET", "/v1/models", list_models, "The models that are served.", ModelList, uses_model=False, also=("/models",)
    ),
    Route("GET", "/v1/models/{model:.+}", get_model, "The model of that name.", ModelEntry, uses_model=False),
)
