"""The models that are served."""

from __future__ import annotations

from typing import cast

from aiohttp import web

from rnn_engine.errors import ModelNotFoundError
from server.http.bodies import json_response
from server.http.context import MODELS
from server.http.routing import Route
from server.models.served import ServedModel
from server.schemas.models import ModelEntry, ModelList, ModelMeta


async def list_models(request: web.Request) -> web.Response:
    models = request.app[MODELS]
    body: ModelList = {"object": "list", "data": [_entry(model) for model in models if model.info is not None]}
    return json_response(body)


async def get_model(request: web.Request) -> web.Response:
    return json_response(_entry(request.app[MODELS].find(request.match_info["model"])))


def _entry(model: ServedModel) -> ModelEntry:
    info = model.info
    if info is None:
        raise ModelNotFoundError(f"model: {model.name!r} is being loaded for the first time")
    meta = {
        "version": info.shape.version,
        **info.shape.sizes,
        "device": info.device,
        "device_bytes": info.device_bytes,
        "weights": info.weights,
        "num_slots": info.num_slots,
        "max_logprobs": info.max_logprobs,
        "tokenizer": info.tokenizer,
        "loras": [{"name": lora.path.name, "alpha": lora.alpha} for lora in info.loras],
        "state_bytes": info.shape.state_bytes,
        "chat_template": info.chat_template.source,
        "status": model.status,
    }
    return {
        "id": model.name,
        "object": "model",
        "created": info.created,
        "owned_by": "rnn-engine",
        "meta": cast(ModelMeta, meta),  # TypedDict can't be checked where keys depend on the version
    }


ROUTES = (
    Route(
        "GET", "/v1/models", list_models, "The models that are served.", ModelList, uses_model=False, also=("/models",)
    ),
    Route("GET", "/v1/models/{model:.+}", get_model, "The model of that name.", ModelEntry, uses_model=False),
)
