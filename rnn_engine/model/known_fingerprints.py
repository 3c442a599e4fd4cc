"""Remember the fingerprints of large model files between runs, in the user's cache folder.

A record is good for one path and one `FileStamp`: a file that changed in any way is read again. Small models are quick
to read and leave no record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rnn_engine.tensor_files.binary_file import FileStamp
from rnn_engine.user_cache import cache_folder, read_record, short_digest, write_record

RECORDED_BYTES = 256 << 20
"""The size from which on a file's fingerprint is kept."""

_RECIPE: Final = 1  # changes whenever `fingerprint` gives others for the same weights
_SETTLED_NANOSECONDS: Final = 2 * 10**9  # a file that changed since then may change again without a new time
_log = logging.getLogger(__name__)


def recall(path: Path, stamp: FileStamp, compute: Callable[[], str]) -> str:
    """Return what is recorded for the file, else what `compute` returns, which is then recorded."""
    if stamp.size < RECORDED_BYTES:
        return compute()
    resolved = str(path.resolve())
    key = {"recipe": _RECIPE, "path": resolved, **asdict(stamp)}
    record = cache_folder() / "fingerprints" / f"{short_digest(resolved)}.json"
    kept = read_record(record) or {}
    known = kept.pop("fingerprint", None)
    if isinstance(known, str) and kept == key:
        return known
    settled = time.time_ns() - max(stamp.modified, stamp.status_changed) > _SETTLED_NANOSECONDS
    found = compute()
    if settled:
        _write(record, {**key, "fingerprint": found})
    return found


def _write(record: Path, content: dict[str, object]) -> None:
    try:
        write_record(record, content)
    except OSError as error:
        _log.warning("the model's fingerprint is not kept and will be computed again: %s", error)
