"""Files of models and states, and keys by their names, as ai00 has them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiohttp import web

from rnn_engine.convert.convert import convert_model, model_bytes
from rnn_engine.errors import InvalidRequestError, StorageError
from rnn_engine.forward.weight_choice import STORED
from rnn_engine.loading.model import open_merged
from server.doors.keys import KeyRing
from server.doors.scopes import Scope
from server.http.bodies import json_response, read_body
from server.http.context import MODELS, SETTINGS, engine_of, folder_of
from server.http.routing import MODEL_QUERY, Route
from server.models.listing import describe_file
from server.models.orders import LoadOrder
from server.schemas.ai00.admin import ExchangeRequest, FileEntry, ListRequest, SaveRequest, Token, WrittenFile
from server.schemas.ai00.models import StateFileRef
from server.schemas.state_entry import StateEntry, state_entry
from states.named.entry import Retention

_PREFAB = ".prefab"


async def exchange(request: web.Request) -> web.Response:
    body = await read_body(request, ExchangeRequest)
    keys = request.app[SETTINGS].doors.keys
    principal = KeyRing(keys).find(body.app_secret)
    is_known = not keys or (principal is not None and principal.name == body.app_id)
    status = 200 if is_known else 403
    answer: Token = {
        "token": body.app_secret if is_known else None,
        "code": status,
        "message": "SUCCESS" if is_known else "there is no API key of this name, or it is another one",
    }
    return json_response(answer, status)


async def save(request: web.Request) -> web.Response:
    body = await read_body(request, SaveRequest)
    models = request.app[MODELS]
    model = models.default if body.model is None else models.find(body.model)
    target = folder_of(request).place(body.path)
    if os.path.lexists(target) and not body.overwrite:
        raise InvalidRequestError("path", body.path, "a name that is free, or overwrite as true")
    models.check_unused(target, "path", body.path)
    size = await asyncio.to_thread(_convert, model.order, target)
    answer: WrittenFile = {"path": str(target), "size": size}
    return json_response(answer)


async def load_state(request: web.Request) -> web.Response:
    body = await read_body(request, StateFileRef)
    engine, path = engine_of(request), folder_of(request).find(body.path)
    if body.default:
        raise InvalidRequestError("default", True, "false; the default state is chosen when the model is loaded")
    files = engine.state_files
    loaded = await asyncio.to_thread(files.read, path)
    frozen = await asyncio.to_thread(files.freeze, loaded, "upload")
    named = await engine.states.put(
        body.name or loaded.name or path.stem,
        frozen,
        Retention(shared=True),
        source=path.name,
        form=loaded.form,
        key=body.key or loaded.id,
    )
    return json_response(state_entry(named))


async def list_folder(request: web.Request) -> web.Response:
    body = await read_body(request, ListRequest)
    folder = folder_of(request).find(body.path)
    if not folder.is_dir():
        raise InvalidRequestError("path", body.path, "a folder")
    return web.json_response(await asyncio.to_thread(_list, folder, body.is_sha))


def _list(folder: Path, with_sha: bool) -> list[FileEntry]:
    return [
        {**describe_file(path, with_sha=with_sha), "is_folder": path.is_dir()}
        for path in sorted(folder.iterdir())
        if path.exists()
    ]


def _convert(order: LoadOrder, target: Path) -> int:
    """Write a model, and return how many bytes that is."""
    weights = "f16" if target.suffix == _PREFAB else STORED
    with open_merged(order.path, order.loras) as model:
        try:
            convert_model(model, target, weights, force=True, field="path")
            return model_bytes(target)
        except OSError as error:
            raise StorageError(f"{target} can't be written: {error.strerror}") from error


ROUTES = (
    Route(
        "POST",
        "/api/auth/exchange",
        exchange,
        "The token of an API key, as ai00 has it; where the server asks for no key, any will do.",
        Token,
        request=ExchangeRequest,
        also=("/api/oai/auth/exchange",),
        always=True,
    ),
    Route(
        "POST",
        "/admin/models/save",
        save,
        "Write a model with its LoRAs into the folder of models, in f16 as ai00's prefab or in another format. With "
        "`overwrite` a file is replaced, and a folder that was written so and in which nothing has changed since; what "
        "a model was loaded from is not.",
        WrittenFile,
        request=SaveRequest,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/models/save",),
    ),
    Route(
        "POST",
        "/admin/models/state/load",
        load_state,
        "Name the state in a file in the folder of models, for all API keys, until no request has used it for an hour.",
        StateEntry,
        request=StateFileRef,
        query=MODEL_QUERY,
        scope=Scope.ADMIN,
        also=("/api/admin/models/state/load",),
    ),
    Route(
        "POST",
        "/admin/files/ls",
        list_folder,
        "What is in the folder of models, or in one below it.",
        list[FileEntry],
        request=ListRequest,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/files/ls", "/admin/files/dir", "/api/admin/files/dir"),
    ),
)
