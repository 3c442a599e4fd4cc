"""Which models and devices there are, as ai00 tells of them."""

from __future__ import annotations

import asyncio
from functools import partial

from aiohttp import web

from rnn_engine.convert.ai00 import model_info
from rnn_engine.gpu import list_devices
from server.doors.scopes import Scope
from server.formatting.ai00_models import describe_load
from server.http.bodies import json_response
from server.http.context import MODELS, engine_of, folder_of
from server.http.repeating import send_repeatedly
from server.http.routing import EVENTS, Route
from server.models.listing import describe_file
from server.models.orders import ModelFolder
from server.schemas.ai00.models import Adapters, ModelFileEntry, ModelFiles, ModelsInfo

_STATE_SECONDS = 0.5  # between two events of models/state


async def info(request: web.Request) -> web.Response:
    return json_response(await _info(request))


async def state(request: web.Request) -> web.StreamResponse:
    return await send_repeatedly(request, _STATE_SECONDS, partial(_info, request))


async def list_files(request: web.Request) -> web.Response:
    found = await asyncio.to_thread(_list, folder_of(request))
    return web.json_response(found)


async def adapters(_request: web.Request) -> web.Response:
    found = await asyncio.to_thread(list_devices)
    names: Adapters = [f"{device.name} ({device.backend})" for device in found]
    return web.json_response(names)


async def _info(request: web.Request) -> ModelsInfo:
    engine = engine_of(request)
    listing = await engine.states.list()
    return {
        "reload": describe_load(request.app[MODELS].find(engine.info.model).order, engine.info),
        "model": model_info(engine.info.shape),
        "states": [
            {"id": str(each.id), "name": each.name, "default": each.name == listing.default} for each in listing.entries
        ],
    }


def _list(folder: ModelFolder) -> ModelFiles:
    return [describe_file(path, with_sha=True) for path in folder.models()]


_INFO = "The model that is loaded, how, and its states, as ai00 has it"

ROUTES = (
    Route("GET", "/api/models/info", info, f"{_INFO}.", ModelsInfo, also=("/api/oai/models/info",)),
    Route(
        "GET",
        "/api/models/state",
        state,
        f"{_INFO}: as events, two a second.",
        ModelsInfo,
        content_type=EVENTS,
        also=("/api/oai/models/state",),
    ),
    Route(
        "GET",
        "/api/models/list",
        list_files,
        "The files in the folder of models (`--model-folder`). The first call reads them whole.",
        list[ModelFileEntry],
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/oai/models/list",),
    ),
    Route(
        "GET",
        "/api/adapters",
        adapters,
        'The devices, each as "name (backend)".',
        list[str],
        uses_model=False,
        also=("/api/oai/adapters",),
    ),
)
