"""Remember the fingerprints of large model files between runs, in the user's cache folder.

A record is good for one path and one `FileStamp`: a file that changed in any way is read again. Small models are quick
to read and leave no record.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rnn_engine.atomic_file import atomic_file
from rnn_engine.tensor_files.binary_file import FileStamp

RECORDED_BYTES = 256 << 20
"""The size from which on a file's fingerprint is kept."""

_SHOWN_DIGITS: Final = 16  # of a record's digest
_RECIPE: Final = 1  # changes whenever `fingerprint` gives others for the same weights
_SETTLED_NANOSECONDS: Final = 2 * 10**9  # a file that changed since then may change again without a new time
_log = logging.getLogger(__name__)


def recall(path: Path, stamp: FileStamp, compute: Callable[[], str]) -> str:
    """Return what is recorded for the file, else what `compute` returns, which is then recorded."""
    if stamp.size < RECORDED_BYTES:
        return compute()
    resolved = str(path.resolve())
    key = {"recipe": _RECIPE, "path": resolved, **asdict(stamp)}
    record = cache_folder() / "fingerprints" / f"{hashlib.sha256(resolved.encode()).hexdigest()[:32]}.json"
    known = _read(record, key)
    if known is not None:
        return known
    settled = time.time_ns() - max(stamp.modified, stamp.status_changed) > _SETTLED_NANOSECONDS
    found = compute()
    if settled:
        _write(record, _checked({**key, "fingerprint": found}))
    return found


def cache_folder() -> Path:
    """Return the folder for what can be computed anew, as the system has it; it may not exist."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rnn-engine"


def _read(record: Path, key: dict[str, object]) -> str | None:
    try:
        content = json.loads(record.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(found := content.get("fingerprint"), str):
        return None
    return found if content == _checked({**key, "fingerprint": found}) else None


def _checked(content: dict[str, object]) -> dict[str, object]:
    """Add a digest, by which a record that was damaged is told from a sound one."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {**content, "digest": digest[:_SHOWN_DIGITS]}


def _write(record: Path, content: dict[str, object]) -> None:
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(record) as file:
            file.write(json.dumps(content).encode())
    except OSError as error:
        _log.warning("the model's fingerprint is not kept and will be computed again: %s", error)
