"""ai00's routes for files: save models, list folders, load and save settings, unpack archives, look up API keys."""

from __future__ import annotations

import asyncio
import os
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Literal

import tomli_w
from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from rnn_engine.bounds import STORED
from rnn_engine.convert.convert import convert_model, model_bytes
from rnn_engine.errors import ForbiddenError, InvalidRequestError, NotFoundError, StorageError
from rnn_engine.files import atomic_file, is_special, read_text
from rnn_engine.loading.runner import open_model
from rnn_engine_server.apis.ai00.models import Ai00Quant, StateFileRef
from rnn_engine_server.apis.common.states import StateEntry, state_entry
from rnn_engine_server.auth.keys import KeyRing, Scope
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import Encoded, RouteTable
from rnn_engine_server.core.routing import MODEL_QUERY, SETTINGS
from rnn_engine_server.core.schema import RequestBody, UnknownFields
from rnn_engine_server.models.files import ModelFileEntry, describe_file, unpack
from rnn_engine_server.models.orders import LoadOrder, folder_of, place_below
from rnn_engine_server.models.registry import MODELS
from rnn_engine_states.named.entry import Retention


class ExchangeRequest(RequestBody):
    """A request for the token of an API key, which is given with its name."""

    always_strict: ClassVar = True

    app_id: str = Field(description="The key's name.")
    app_secret: str = Field(description="The key.")


class Token(TypedDict):
    """The answer to a request for the token of an API key.

    `token` is what to send as `Authorization: Bearer TOKEN`: the key itself, null if there is no such key. `code` is
    the HTTP status.
    """

    token: str | None
    code: int
    message: str


class SaveRequest(RequestBody):
    """A request to save a loaded model to a file."""

    always_strict: ClassVar = True

    aliases: ClassVar = {"model_path": "path"}

    path: str = Field(
        min_length=1,
        description="A file in the folder of models. The name's suffix gives the format: `.prefab` is ai00's.",
    )
    model: str | None = Field(default=None, description="The name of the model; null is the default one.")
    overwrite: bool = Field(default=False, description="Replace an existing file, or a folder that this route wrote.")


class WrittenFile(TypedDict):
    """The file or folder that was written: a saved model, a settings file or an unpacked archive.

    `size` is the size of all its files in bytes.
    """

    path: str
    size: int


class ListRequest(RequestBody):
    """A request to list the files of a folder."""

    path: str = Field(default=".", min_length=1, description="The folder of models, or a folder in it.")
    is_sha: bool = Field(
        default=False, description="Return the SHA-256 of each file. The server reads the whole files for it."
    )


class FileEntry(ModelFileEntry):
    """The description of a file or a folder. `sha` is the file's SHA-256, empty unless the request sets `is_sha`."""

    is_folder: bool


class ConfigModel(RequestBody):
    """The section `model` of ai00's Config.toml: the model to serve, and its settings."""

    aliases: ClassVar = {"model_path": "path", "model_name": "name"}

    path: str = Field(default="assets/models", description="The folder of models.")
    name: str = Field(default="", description="A file in the folder of models.")
    quant: int = Field(
        default=0, ge=0, description="How many layers, from the first on, have the weights of `quant_type`."
    )
    quant_type: Ai00Quant = Field(default="None", description="The weights of the first `quant` layers.")
    precision: Literal["Fp16", "Fp32"] = Field(default="Fp16", description="Has no effect here.")
    token_chunk_size: int = Field(default=128, ge=1, description="Has no effect here.")
    max_batch: int = Field(default=8, ge=1, description="How many requests run at the same time.")


class ConfigLora(RequestBody):
    """A section `lora` of ai00's Config.toml: a LoRA to merge into the model."""

    path: str = Field(default="", description="Its file.")
    alpha: float = Field(default=1.0, description="Its strength.")


class ConfigState(RequestBody):
    """A section `state` of ai00's Config.toml: the file of a state that requests may start from."""

    path: str = Field(default="", description="Its file.")
    name: str | None = Field(default=None, description="Its name.")
    id: str | None = Field(default=None, description="The id of the state, a UUID.")
    default: bool = Field(default=False, description="Whether requests that name no state start from this one.")


class ConfigTokenizer(RequestBody):
    path: str = Field(default="assets/tokenizer/rwkv_vocab_v20230424.json", description="Its file.")


class ConfigBnf(RequestBody):
    enable_bytes_cache: bool = Field(default=True, description="Has no effect here.")
    start_nonterminal: str = Field(default="start", description="Has no effect here: it is always `start`.")


class AppKey(RequestBody):
    app_id: str = Field(default="", description="The key's name.")
    secret_key: str = Field(default="", description="The key.")


class ConfigListen(RequestBody):
    """The section `listen` of ai00's Config.toml: the address that the server listens on, and its API keys."""

    ip: str = Field(default="0.0.0.0", description="The address.")
    port: int = Field(default=65530, ge=0, le=65535, description="The port.")
    domain: str = Field(default="local", description="Has no effect here.")
    acme: bool = Field(default=False, description="Only false.")
    tls: bool = Field(default=False, description="Whether the server speaks HTTPS.")
    slot: str = Field(default="ai00s", description="Has no effect here.")
    force_pass: bool | None = Field(default=False, description="Has no effect here.")
    expire_sec: int | None = Field(default=86400, description="Has no effect here.")
    app_keys: list[AppKey] = Field(default=[], description="The API keys.")


class ConfigWeb(RequestBody):
    path: str = Field(default="assets/www/index.zip", description="Has no effect here.")


class Ai00Config(RequestBody):
    """The contents of ai00's Config.toml."""

    model: ConfigModel = Field(default=ConfigModel(), description="The model.")
    lora: list[ConfigLora] = Field(default=[], description="LoRAs to merge, in this order.")
    state: list[ConfigState] = Field(default=[], description="States to start from.")
    tokenizer: ConfigTokenizer = Field(default=ConfigTokenizer(), description="The tokenizer.")
    bnf: ConfigBnf = Field(default=ConfigBnf(), description="Settings of grammars.")
    adapter: Literal["Auto", "Economical"] | dict[str, Any] = Field(
        default="Auto", description='The device: `Auto`, `Economical` or `{"Manual": index}`.'
    )
    listen: ConfigListen = Field(
        default=ConfigListen(), description="The address that the server listens on, and its API keys."
    )
    web: ConfigWeb | None = Field(default=None, description="ai00's web pages.")
    embed: dict[str, Any] | None = Field(default=None, description="The embedding model.")


class LoadConfigRequest(RequestBody):
    """A request to read a settings file."""

    always_strict: ClassVar = True

    path: str = Field(min_length=1, description="A Config.toml in a folder for admins (`--admin-folder`).")


class SaveConfigRequest(LoadConfigRequest):
    """A request to write settings to a file. The running server does not change."""

    config: Ai00Config = Field(description="The settings to write.")


class UnzipRequest(RequestBody):
    """A request to unpack a zip archive."""

    always_strict: ClassVar = True

    aliases: ClassVar = {"zip_path": "path", "target_dir": "output"}

    path: str = Field(min_length=1, description="A zip archive in a folder for admins.")
    output: str = Field(min_length=1, description="A folder below one for unpacked archives (`--unzip-folder`).")


_PREFAB = ".prefab"


ROUTES = RouteTable(scope=Scope.ADMIN, uses_model=False)


@ROUTES.post(
    "/api/auth/exchange", "/api/oai/auth/exchange", answer=Token, always=True, scope=Scope.USE, uses_model=True
)
async def exchange(call: Call, body: ExchangeRequest) -> Encoded:
    """The token of an API key, in ai00's form. A server without API keys accepts any key."""
    keys = call.app[SETTINGS].auth.keys
    principal = KeyRing(keys).find(body.app_secret)
    is_known = not keys or (principal is not None and principal.name == body.app_id)
    status = 200 if is_known else 403
    answer: Token = {
        "token": body.app_secret if is_known else None,
        "code": status,
        "message": "SUCCESS" if is_known else "there is no API key with this name and secret",
    }
    return Encoded.of(answer, status)


@ROUTES.post("/admin/models/save", "/api/admin/models/save")
async def save(call: Call, body: SaveRequest) -> WrittenFile:
    """Write a model with its LoRAs into the folder of models, in f16 as ai00's prefab or in another format.

    With `overwrite` a file is replaced, and so is a folder that was written by this route and has not changed since. A
    file or folder that a model was loaded from is never replaced.
    """
    models = call.app[MODELS]
    model = models.default if body.model is None else models.find(body.model)
    target = folder_of(call.app[SETTINGS]).place(body.path)
    if os.path.lexists(target) and not body.overwrite:
        raise InvalidRequestError("path", body.path, "a name that is free, or overwrite set to true")
    if is_special(target):
        raise InvalidRequestError("path", body.path, "the name of a file or a folder")
    models.check_unused(target, "path", body.path)
    size = await asyncio.to_thread(_convert, model.order, target)
    return {"path": str(target), "size": size}


@ROUTES.post("/admin/models/state/load", "/api/admin/models/state/load", query=MODEL_QUERY, uses_model=True)
async def load_state(call: Call, body: StateFileRef) -> StateEntry:
    """Read a state file in the folder of models and give the state a name, for all API keys.

    The name lasts until no request has used it for an hour.
    """
    engine, path = call.engine, folder_of(call.app[SETTINGS]).find(body.path)
    if body.default:
        raise InvalidRequestError("default", True, "false, since the default state is chosen when the model is loaded")
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
    return state_entry(named)


@ROUTES.post("/admin/files/ls", "/api/admin/files/ls", "/admin/files/dir", "/api/admin/files/dir")
async def list_folder(call: Call, body: ListRequest) -> list[FileEntry]:
    """The files and folders in the folder of models, or in one below it."""
    folder = folder_of(call.app[SETTINGS]).find(body.path)
    if not folder.is_dir():
        raise InvalidRequestError("path", body.path, "a folder")
    return await asyncio.to_thread(_list, folder, body.is_sha)


def _list(folder: Path, with_sha: bool) -> list[FileEntry]:
    return [
        {**describe_file(path, with_sha=with_sha), "is_folder": path.is_dir()}
        for path in sorted(folder.iterdir())
        if path.exists()
    ]


def _convert(order: LoadOrder, target: Path) -> int:
    """Write the model that `order` names, with its LoRAs merged, to `target`, and return the file's size in bytes.

    Raises StorageError.
    """
    weights = "f16" if target.suffix == _PREFAB else STORED
    with open_model(order.path, order.loras) as model:
        try:
            convert_model(model, target, weights, force=True, field="path")
            return model_bytes(target)
        except OSError as error:
            raise StorageError(f"{target} can't be written: {error.strerror}") from error


_MOST_CONFIG_BYTES = 1 << 20


@ROUTES.post("/admin/files/unzip", "/api/admin/files/unzip")
async def unzip(call: Call, body: UnzipRequest) -> WrittenFile:
    """Unpack an archive in a folder for admins into a folder below `--unzip-folder`.

    An existing folder is replaced if it is empty, or if it was unpacked by this route and has not changed since.
    """
    settings = call.app[SETTINGS]
    archive, folders = folder_of(settings).find(body.path), settings.unzip_folders
    if not folders:
        raise NotFoundError(
            "the server has no folder for unpacked archives; its operator can name one with --unzip-folder"
        )
    target = place_below(folders, (Path.cwd(), folders[0]), body.output)
    call.app[MODELS].check_unused(target, "output", body.output)
    size = await asyncio.to_thread(unpack, archive, target, call.limits)
    return {"path": str(target), "size": size}


@ROUTES.post("/admin/files/config/load", "/api/admin/files/config/load", "/api/files/config/load", answer=Ai00Config)
async def load_config(call: Call, body: LoadConfigRequest) -> Encoded:
    """ai00's settings in a file in a folder for admins (`--admin-folder`).

    Settings that the file lacks have ai00's defaults.
    """
    config = await asyncio.to_thread(_read, folder_of(call.app[SETTINGS]).find(body.path), body.path)
    return Encoded(config.model_dump_json().encode())


@ROUTES.post("/admin/files/config/save", "/api/admin/files/config/save", "/api/files/config/save")
async def save_config(call: Call, body: SaveConfigRequest) -> WrittenFile:
    """Write ai00's settings into a file, for the next start of a server with `--config`.

    An existing file is replaced only if it holds nothing but settings of ai00.
    """
    path = folder_of(call.app[SETTINGS]).place(body.path)
    if path.suffix != ".toml":
        raise ForbiddenError(f"{body.path[:200]!r} can't be written; expected a file name that ends in .toml")
    text = tomli_w.dumps(body.config.model_dump(mode="json", exclude_none=True)).encode()
    await asyncio.to_thread(_write, path, text, body.path)
    return {"path": str(path), "size": len(text)}


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
        return tomllib.loads(read_text(path))
    except (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise _no_config(name, error) from None


def _no_config(name: str, error: Exception) -> InvalidRequestError:
    return InvalidRequestError("path", name, f"ai00's Config.toml: {str(error)[:300]}")


def _write(path: Path, text: bytes, name: str) -> None:
    """Write settings as TOML `text` to the file `path`. An existing file is replaced only if it is ai00's Config.toml.

    A file counts as that if it has a table [model] and no table that ai00 lacks. Raises InvalidRequestError, which
    calls the file `name`, for another existing file, and StorageError if the file can't be written.
    """
    if os.path.lexists(path):
        content = _parse(path, name)
        if not isinstance(content.get("model"), dict) or not content.keys() <= Ai00Config.model_fields.keys():
            raise InvalidRequestError("path", name, "a name that is free, or an ai00 Config.toml to replace")
    try:
        with atomic_file(path) as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path} can't be written: {error.strerror}") from error
