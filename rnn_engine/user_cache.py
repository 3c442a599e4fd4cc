"""Small records in the user's cache folder, of what can be computed anew."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rnn_engine.atomic_file import atomic_file

_SHOWN_DIGITS: Final = 16  # of a record's digest


def cache_folder() -> Path:
    """Return the folder for what can be computed anew, as the system has it; it may not exist."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rnn-engine"


def short_digest(text: str, digits: int = 32) -> str:
    """Return the first digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def read_record(path: Path) -> dict[str, Any] | None:
    """Return what `write_record` wrote; None where it is damaged, not there, or another program's."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    digest = content.pop("digest", None)
    return content if digest == _digest(content) else None


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write what JSON can hold, with a digest that tells a damaged record. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(json.dumps({**content, "digest": _digest(content)}).encode())


def _digest(content: Mapping[str, Any]) -> str:
    return short_digest(json.dumps(content, sort_keys=True), _SHOWN_DIGITS)
