"""Describe the files in the folder of models, with sizes and digests, and unpack archives of them."""

from __future__ import annotations

import errno
import hashlib
import lzma
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from typing_extensions import TypedDict

from rnn_engine.convert.writers import Ai00ModelInfo, model_info
from rnn_engine.errors import InvalidRequestError, ModelError, StorageError, is_inner_path
from rnn_engine.files import atomic_folder
from rnn_engine.loading.runner import open_model
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.models.orders import MODEL_ENDINGS

_KNOWN_FILES = 1024


class ModelFileEntry(TypedDict):
    """The description, for clients, of one file or folder in the folder of models.

    `sha` is its SHA-256; empty if that was not asked for, and for folders. `info` is null if the file is no model.
    """

    path: str
    name: str
    size: int
    sha: str
    info: Ai00ModelInfo | None


def describe_file(path: Path, *, with_sha: bool) -> ModelFileEntry:
    """Return the description of a file or folder, with its SHA-256 if `with_sha` is set and it is a file.

    The digest reads the whole file; it is cached until the file changes.
    """
    facts = path.stat()
    version = path, facts.st_mtime_ns, facts.st_size
    return {
        "path": str(path),
        "name": path.name,
        "size": facts.st_size,
        "sha": _digest(*version) if with_sha and path.is_file() else "",
        "info": _model_info(*version) if path.suffix in MODEL_ENDINGS and path.is_file() else None,
    }


@lru_cache(maxsize=_KNOWN_FILES)
def _digest(path: Path, _changed: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=_KNOWN_FILES)
def _model_info(path: Path, _changed: int, _size: int) -> Ai00ModelInfo | None:
    try:
        with open_model(path) as model:
            return model_info(model.shape)
    except ModelError:
        return None


_PIECE_BYTES = 1 << 20
_MOST_LEVELS = 100  # of folders; deleting a folder recurses once for each
_FIELD = "path"
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
)
_MISFITS = (FileExistsError, NotADirectoryError, IsADirectoryError)  # two names of which one is within the other


def unpack(archive: Path, target: Path, limits: Limits) -> int:
    """Unpack an archive into the folder `target`, and return the number of bytes unpacked.

    The folder appears whole or not at all. It replaces an empty folder, or one that was unpacked like this and has
    not changed since, by the list of its files in it (`.rnn-engine.json`).
    Raises InvalidRequestError if anything else is at `target`, and for a file that is no archive.
    Raises it, too, for an archive with links or names that lead out of it, or with more bytes or files than allowed.
    Bytes are counted while unpacking, whatever size the archive states.
    Raises StorageError if the disk can't take the files.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(target, "output") as folder, _refusals(archive), zipfile.ZipFile(archive) as opened:
            return _extract(opened, folder, limits)
    except OSError as error:
        raise StorageError(f"{target} can't be written: {error.strerror}") from error


@contextmanager
def _refusals(archive: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise InvalidRequestError(_FIELD, archive.name, f"a zip archive that can be read: {error}") from None
    except _MISFITS as error:
        raise InvalidRequestError(
            _FIELD, archive.name, f"an archive whose names do not collide: {error.strerror}"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidRequestError(_FIELD, archive.name, "an archive with shorter names") from None
        raise StorageError(f"{archive.name} can't be unpacked: {error.strerror}") from error


def _extract(opened: zipfile.ZipFile, folder: Path, limits: Limits) -> int:
    entries = opened.infolist()
    limits.check("max_unzip_files", _FIELD, len(entries))
    places = [folder / _checked_name(entry) for entry in entries]
    num_bytes = 0
    for entry, place in zip(entries, places, strict=True):
        if entry.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with opened.open(entry) as packed, place.open("xb") as file:
            while piece := packed.read(_PIECE_BYTES):
                num_bytes += len(piece)
                limits.check("max_unzip_bytes", _FIELD, num_bytes)
                file.write(piece)
    return num_bytes


def _checked_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of an entry in an archive. Raises InvalidRequestError for links and unsafe names."""
    name = entry.filename
    if not is_inner_path(name):
        raise InvalidRequestError(_FIELD, name, "an archive whose files all lie in the folder it is unpacked to")
    if name.count("/") > _MOST_LEVELS:
        raise InvalidRequestError(_FIELD, name, f"an archive of at most {_MOST_LEVELS} levels of folders")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidRequestError(_FIELD, name, "an archive of files and folders, without links")
    return name
