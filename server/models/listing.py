"""What is in a folder of models: each file's size, its digest, and the sizes of the model in it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from rnn_engine.convert.ai00 import Ai00ModelInfo, model_info
from rnn_engine.errors import ModelError
from rnn_engine.loading.model import open_model
from server.models.orders import MODEL_ENDINGS
from server.schemas.ai00.models import ModelFileEntry

_KNOWN_FILES = 1024


def describe_file(path: Path, *, with_sha: bool) -> ModelFileEntry:
    """Return what is told of a file or folder. The digest reads a file whole, once until it changes."""
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
