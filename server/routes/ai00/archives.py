"""Archives that admins unpack, and settings that they read and write, as ai00 has them."""

from __future__ import annotations

import asyncio
import os
import tomllib
from pathlib import Path

import tomli_w
from aiohttp import web
from pydantic import ValidationError

from rnn_engine.atomic_file import atomic_file
from rnn_engine.errors import ForbiddenError, InvalidRequestError, NotFoundError, StorageError
from server.doors.scopes import Scope
from server.http.bodies import json_response, read_body
from server.http.context import MODELS, SETTINGS, folder_of
from server.http.routing import Route
from server.models.orders import place_below
from server.models.unpacking import unpack
from server.schemas.ai00.admin import WrittenFile
from server.schemas.ai00.config import Ai00Config, LoadConfigRequest, SaveConfigRequest, UnzipRequest
from server.schemas.base import UnknownFields

_MOST_CONFIG_BYTES = 1 << 20


async def unzip(request: web.Request) -> web.Response:
    body = await read_body(request, UnzipRequest)
    archive, target = folder_of(request).find(body.path), _output(request, body.output)
    request.app[MODELS].check_unused(target, "output", body.output)
    size = await asyncio.to_thread(unpack, archive, target, request.app[SETTINGS].limits)
    answer: WrittenFile = {"path": str(target), "size": size}
    return json_response(answer)


async def load_config(request: web.Request) -> web.Response:
    body = await read_body(request, LoadConfigRequest)
    config = await asyncio.to_thread(_read, folder_of(request).find(body.path), body.path)
    return web.Response(text=config.model_dump_json(), content_type="application/json")


async def save_config(request: web.Request) -> web.Response:
    body = await read_body(request, SaveConfigRequest)
    path = folder_of(request).place(body.path)
    if path.suffix != ".toml":
        raise ForbiddenError(f"{body.path[:200]!r} can't be written; expected a file whose name ends in .toml")
    text = tomli_w.dumps(body.config.model_dump(mode="json", exclude_none=True)).encode()
    await asyncio.to_thread(_write, path, text, body.path)
    answer: WrittenFile = {"path": str(path), "size": len(text)}
    return json_response(answer)


def _output(request: web.Request, text: str) -> Path:
    """Return the folder to unpack into. Raises ForbiddenError, or NotFoundError where there is none for that."""
    folders = request.app[SETTINGS].unzip_folders
    if not folders:
        raise NotFoundError("the server has no folder for unpacked archives; see --unzip-folder")
    return place_below(folders, (Path.cwd(), folders[0]), text)


def _read(path: Path, name: str) -> Ai00Config:
    content = _parse(path, name)
    try:
        return Ai00Config.model_validate(content, context=UnknownFields(refuse=False))
    except ValidationError as error:
        raise _no_config(name, error) from None


def _parse(path: Path, name: str) -> dict[str, object]:
    if not path.is_file() or path.stat().st_size > _MOST_CONFIG_BYTES:
        raise InvalidRequestError("path", name, f"a Config.toml of at most {_MOST_CONFIG_BYTES} bytes")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise _no_config(name, error) from None


def _no_config(name: str, error: Exception) -> InvalidRequestError:
    return InvalidRequestError("path", name, f"ai00's Config.toml: {str(error)[:300]}")


def _write(path: Path, text: bytes, name: str) -> None:
    """Write settings; a file that is there is replaced if it has a table [model] and none that ai00 does not know."""
    if os.path.lexists(path):
        content = _parse(path, name)
        if not isinstance(content.get("model"), dict) or not content.keys() <= Ai00Config.model_fields.keys():
            raise InvalidRequestError("path", name, "a new name, or ai00's Config.toml, which is replaced")
    try:
        with atomic_file(path) as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path} can't be written: {error.strerror}") from error


ROUTES = (
    Route(
        "POST",
        "/admin/files/unzip",
        unzip,
        "Unpack an archive in a folder of the admins into one for that (`--unzip-folder`). A folder that is there is "
        "replaced if it is empty, or was unpacked so and nothing in it has changed since.",
        WrittenFile,
        request=UnzipRequest,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/files/unzip",),
    ),
    Route(
        "POST",
        "/admin/files/config/load",
        load_config,
        "ai00's settings in a file (`--admin-folder`), with its defaults for what the file does not say.",
        Ai00Config,
        request=LoadConfigRequest,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/files/config/load", "/api/files/config/load"),
    ),
    Route(
        "POST",
        "/admin/files/config/save",
        save_config,
        "Write ai00's settings into a file, for the next start of a server with `--config`. Of what is there, "
        "only settings of ai00 are replaced.",
        WrittenFile,
        request=SaveConfigRequest,
        scope=Scope.ADMIN,
        uses_model=False,
        also=("/api/admin/files/config/save", "/api/files/config/save"),
    ),
)
