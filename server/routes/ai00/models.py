"""Which models and devices there are, as ai00 tells of them."""

from __future__ import annotations

import asyncio
import hashlib
from functools import lru_cache
from pathlib import Path

from aiohttp import web

from rnn_engine.convert.ai00 import Ai00ModelInfo, model_info
from rnn_engine.errors import ModelError
from rnn_engine.gpu import list_devices
from rnn_engine.interface import EngineInfo
from rnn_engine.loading.model import open_model
from server.doors.scopes import Scope
from server.http.bodies import json_response
from server.http.context import LIFECYCLE, MODELS, engine_of, folder_of
from server.http.routing import EVENTS, Route
from server.http.sse import EventStream, encode_event
from server.models.orders import LoadOrder, ModelFolder
from server.schemas.ai00.models import Adapters, Ai00Reload, ModelFileEntry, ModelFiles, ModelsInfo

_STATE_SECONDS = 0.5  # between two events of models/state
_KNOWN_FILES = 1024


async def info(request: web.Request) -> web.Response:
    return json_response(await _info(request))


async def state(request: web.Request) -> web.StreamResponse:
    stream = EventStream(request)
    await stream.open()
    while not request.app[LIFECYCLE].closing:
        await stream.write(encode_event(await _info(request)))
        await asyncio.sleep(_STATE_SECONDS)
    return await stream.close()


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
        "reload": _reload(request.app[MODELS].find(engine.info.model).order, engine.info),
        "model": model_info(engine.info.shape),
        "states": [
            {"id": str(each.id), "name": each.name, "default": each.name == listing.default} for each in listing.entries
        ],
    }


def _reload(order: LoadOrder, info: EngineInfo) -> Ai00Reload:
    return {
        "model_path": str(order.path),
        "name": info.model,
        "lora": [{"path": str(lora.path), "alpha": lora.alpha} for lora in info.loras],
        "weights": info.weights,
        "max_batch": info.num_slots,
        "adapter": info.device,
    }


def _list(folder: ModelFolder) -> ModelFiles:
    return [_entry(path) for path in folder.models()]


def _entry(path: Path) -> ModelFileEntry:
    facts = path.stat()
    sha, found = _read(path, facts.st_mtime_ns, facts.st_size)
    return {"path": str(path), "name": path.name, "size": facts.st_size, "sha": sha, "info": found}


@lru_cache(maxsize=_KNOWN_FILES)
def _read(path: Path, _changed: int, _size: int) -> tuple[str, Ai00ModelInfo | None]:
    """Return the digest of a file, and the sizes of the model in it; kept until the file changes."""
    with path.open("rb") as file:
        sha = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        with open_model(path) as model:
            return sha, model_info(model.shape)
    except ModelError:
        return sha, None


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
