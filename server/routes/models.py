"""The model that is served."""

from __future__ import annotations

from aiohttp import web

from rnn_engine.errors import NotFoundError
from rnn_engine.requests import EngineInfo
from server.keys import ENGINE
from server.routing import Route
from server.schemas.models import ModelEntry, ModelList
from server.wire import json_response


async def list_models(request: web.Request) -> web.Response:
    body: ModelList = {"object": "list", "data": [_entry(request.app[ENGINE].info)]}
    return json_response(body)


async def get_model(request: web.Request) -> web.Response:
    info, wanted = request.app[ENGINE].info, request.match_info["model"]
    if wanted != info.model:
        raise NotFoundError(f"there is no model {wanted!r}; this server has {info.model!r}")
    return json_response(_entry(info))


def _entry(info: EngineInfo) -> ModelEntry:
    shape = info.shape
    return {
        "id": info.model,
        "object": "model",
        "created": info.created,
        "owned_by": "rnn-engine",
        "meta": {
            "version": shape.version,
            "num_layers": shape.num_layers,
            "width": shape.width,
            "num_heads": shape.num_heads,
            "head_size": shape.head_size,
            "ffn_width": shape.ffn_width,
            "vocab_size": shape.vocab_size,
            "device": info.device,
            "device_bytes": info.device_bytes,
            "weights": info.weights,
            "num_slots": info.num_slots,
            "max_logprobs": info.max_logprobs,
            "tokenizer": info.tokenizer,
        },
    }


ROUTES = (
    Route("GET", "/v1/models", list_models, "The model that is served.", ModelList),
    Route("GET", "/v1/models/{model:.+}", get_model, "The model of that name.", ModelEntry),
)
