"""The model that is served."""

from __future__ import annotations

from typing import cast

from aiohttp import web

from rnn_engine.errors import NotFoundError
from rnn_engine.interface import EngineInfo
from server.http.bodies import json_response
from server.http.context import engine_of
from server.http.routing import Route
from server.schemas.models import ModelEntry, ModelList, ModelMeta


async def list_models(request: web.Request) -> web.Response:
    body: ModelList = {"object": "list", "data": [_entry(engine_of(request).info)]}
    return json_response(body)


async def get_model(request: web.Request) -> web.Response:
    info, wanted = engine_of(request).info, request.match_info["model"]
    if wanted != info.model:
        raise NotFoundError(f"there is no model {wanted!r}; this server has {info.model!r}")
    return json_response(_entry(info))


def _entry(info: EngineInfo) -> ModelEntry:
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
    }
    return {
        "id": info.model,
        "object": "model",
        "created": info.created,
        "owned_by": "rnn-engine",
        "meta": cast(ModelMeta, meta),  # TypedDict can't be checked where keys depend on the version
    }


ROUTES = (
    Route("GET", "/v1/models", list_models, "The model that is served.", ModelList, also=("/models",)),
    Route("GET", "/v1/models/{model:.+}", get_model, "The model of that name.", ModelEntry),
)
