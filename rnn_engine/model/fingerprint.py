"""Compute a model's fingerprint: a short digest of its weights, the same for the same weights in any file.

The fingerprint covers every tensor's name, element type, shape and bytes, in the order of the names. A tensor's bytes
are hashed by chunks, on all cores, and then the digests of the chunks are hashed. For a matrix in quantised blocks, the
name of the block format replaces the element type, and its codes and figures replace the bytes. Fingerprints of large
files are recorded on disk for later runs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.files import cache_folder, read_record, short_digest, write_record
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.binary_file import FileStamp

_CHUNK_BYTES: Final = 4 << 20
_SHOWN_DIGITS: Final = 32  # of the digest's 64


def fingerprint(version: str, names: Iterable[str], read: Callable[[str], NDArray[Any] | Blocks]) -> str:
    """Return the fingerprint of a model, a digest of its RWKV `version` and its tensors, as 32 hexadecimal digits.

    Calls `read` for each of `names` to get the tensor. Blocks until all tensors are read; holds one at a time.
    """
    digest = hashlib.sha256(version.encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in sorted(names):
            digest.update(_describe(name, read(name), pool))
    return digest.hexdigest()[:_SHOWN_DIGITS]


def with_settings(weights: str, settings: str) -> str:
    """Return a fingerprint of a model's weights together with a text of settings that change the model's outputs.

    `weights` is the fingerprint of the weights alone; it is returned unchanged if `settings` is empty.
    """
    return hashlib.sha256(f"{weights} {settings}".encode()).hexdigest()[:_SHOWN_DIGITS] if settings else weights


def _describe(name: str, tensor: NDArray[Any] | Blocks, pool: ThreadPoolExecutor) -> bytes:
    """Return the bytes that one tensor adds to a model's fingerprint: name, type, shape, and digests of its chunks."""
    kind, arrays = (
        (tensor.format.name, [tensor.codes, tensor.figures])
        if isinstance(tensor, Blocks)
        else (tensor.dtype.name, [tensor])
    )
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    chunks = [part[start : start + _CHUNK_BYTES] for part in parts for start in range(0, len(part), _CHUNK_BYTES)]
    return f"\n{name} {kind} {tensor.shape} ".encode() + b"".join(pool.map(_digest, chunks))


def _digest(chunk: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(chunk.data).digest()


# Remember the fingerprints of large model files between runs, in the user's cache folder.
#
# A record is valid for one path and one `FileStamp`: a file that changed in any way is read again. Small models are
# quick to read and are not recorded.

RECORDED_BYTES = 256 << 20
"""The least size in bytes of a model file whose fingerprint is recorded for later runs."""

_RECIPE: Final = 1  # increased whenever `fingerprint` returns another value for the same weights
_SETTLED_NANOSECONDS: Final = 2 * 10**9  # a file changed more recently may change again with the same time
_log = logging.getLogger(__name__)


def recall(path: Path, stamp: FileStamp, compute: Callable[[], str]) -> str:
    """Return the fingerprint of the model file at `path`: the one recorded by an earlier run, else that of `compute`.

    A newly computed fingerprint is recorded, except for files smaller than `RECORDED_BYTES` and files changed within
    the last two seconds. A record is valid for one `path` and `stamp`.
    """
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
        _log.warning("the model's fingerprint can't be saved, so the next load computes it again: %s", error)
