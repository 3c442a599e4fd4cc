"""What an admin does while the server runs: load and unload models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

from rnn_engine.gpu import economical_device
from rnn_engine.loading.parts import model_name
from rnn_engine.loading.states import StateFile
from rnn_engine.model import LoraChoice
from server.doors.scopes import Scope
from server.formatting.models import model_entry
from server.http.bodies import json_response, read_body
from server.http.context import MODELS, folder_of
from server.http.routing import Route
from server.models.orders import LoadOrder, ModelFolder
from server.schemas.ai00.models import ReloadRequest, StateFileRef, UnloadRequest
from server.schemas.models import ModelEntry


async def load(request: web.Request) -> web.Response:
    body = await read_body(request, ReloadRequest)
    models, before = request.app[MODELS], request.app[MODELS].default
    order = await asyncio.to_thread(_order, body, folder_of(request))
    model = await models.put(order)
    if not body.add:
        models.set_default(model.name)
        if before is not model:
            await before.unload(withdraw=True)
    return json_response(model_entry(model))


async def unload(request: web.Request) -> web.Response:
    body = await read_body(request, UnloadRequest)
    return await _unload(request, body.model)


async def unload_by_get(request: web.Request) -> web.Response:
    return await _unload(request, request.query.get("model"))


async def _unload(request: web.Request, name: str | None) -> web.Response:
    models = request.app[MODELS]
    model = models.default if name is None else models.find(name)
    await model.unload(withdraw=True)
    return json_response(model_entry(model))


def _order(body: ReloadRequest, folder: ModelFolder) -> LoadOrder:
    """Return what is to be loaded. Raises ForbiddenError or NotFoundError for a file that may not be, or is not."""
    path = folder.find(body.model_path)
    states = tuple(_state_file(state, folder.find(state.path)) for state in body.state)
    default = next((file.name for file, state in zip(states, body.state, strict=True) if state.default), None)
    return LoadOrder(
        name=body.name or model_name(path),
        path=path,
        loras=tuple(LoraChoice(folder.find(lora.path), lora.alpha) for lora in body.lora),
        states=states,
        default_state=default,
        weights=body.chosen_weights,
        slots=body.max_batch,
        device=_device(body.adapter),
        tokenizer=None if body.tokenizer_path is None else str(folder.find(body.tokenizer_path)),
    )


def _state_file(state: StateFileRef, path: Path) -> StateFile:
    """Return the file of a state, whose name has to be known where it is the default."""
    return StateFile(path, state.name or (path.stem if state.default else None), state.key)


def _device(adapter: object) -> str | None:
    match adapter:
        case int():
            return str(adapter)
        case "Economical":
            return economical_device()
        case "Auto":
            return "auto"
    return None


_QUERY: Mapping[str, str] = {"model": "The name of the model; the default one where it is absent."}
_UNLOADS = "Free a model when its running requests have ended. Those that come for it get 503 until it is loaded again."

ROUTES = (
    Route(
        "POST",
        "/admin/models/load",
        load,
        "Load a model from the folder of models (`--model-folder`), in place of the default one or beside it.",
        ModelEntry,
        request=ReloadRequest,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/models/load",),
    ),
    Route(
        "POST",
        "/admin/models/unload",
        unload,
        _UNLOADS,
        ModelEntry,
        request=UnloadRequest,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/models/unload",),
    ),
    Route(
        "GET",
        "/admin/models/unload",
        unload_by_get,
        f"{_UNLOADS} Browsers are refused, except on the server's own page and on listed origins (`--cors-origin`).",
        ModelEntry,
        query=_QUERY,
        changes_by_get=True,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/models/unload",),
    ),
)
