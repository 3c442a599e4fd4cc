"""The bodies of ai00's routes for whoever runs the server."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from server.schemas.ai00.models import ModelFileEntry
from server.schemas.base import RequestBody


class ExchangeRequest(RequestBody):
    """An API key by its name."""

    app_id: str = Field(description="The key's name.")
    app_secret: str = Field(description="The key.")


class Token(TypedDict):
    """`token` is what to send as `Authorization: Bearer TOKEN`: the key itself, null where there is no such key. `code`
    is the status."""

    token: str | None
    code: int
    message: str


class SaveRequest(RequestBody):
    """Where to write the model that is loaded."""

    aliases: ClassVar = {"model_path": "path"}

    path: str = Field(
        min_length=1, description="A file in the folder of models. Its ending says the format: `.prefab` is ai00's."
    )
    model: str | None = Field(default=None, description="The name of the model; null is the default one.")
    overwrite: bool = Field(
        default=False, description="Whether what is there is replaced: a file, or a folder that was written so."
    )


class WrittenFile(TypedDict):
    """`path` is a file, or a folder whose files have `size` bytes together."""

    path: str
    size: int


class ListRequest(RequestBody):
    """A folder to list."""

    path: str = Field(default=".", min_length=1, description="The folder of models, or one in it.")
    is_sha: bool = Field(default=False, description="Tell the SHA-256 of each file, which are read whole for it.")


class FileEntry(ModelFileEntry):
    """The same for any file or folder; `sha` is empty unless it was asked for."""

    is_folder: bool
