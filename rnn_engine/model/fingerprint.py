"""Compute a model's fingerprint: a short digest of its weights, the same for the same weights in any file.

The fingerprint covers every tensor's name, element type, shape and bytes, in the order of the names. A tensor's bytes
are hashed by chunks, and then the digests of the chunks are hashed. For a matrix in quantised blocks, the
name of the block format replaces the element type, and its codes and figures replace the bytes. Fingerprints of large
files are recorded on disk for later runs.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.files import cache_folder, read_record, short_digest, write_record
from rnn_engine.quantised import Blocks
from rnn_engine.quantised.rows import PIECE_WEIGHTS, Matrix, StoredRows, map_rows
from rnn_engine.tensor_files.source import FileStamp

_CHUNK_BYTES: Final = 4 << 20
_LEAST_PIECES: Final = 8  # of a matrix, so that the few that are read ahead are less than all of it
_MOST_WAITING: Final = 64  # pieces of a tensor whose rows before were not read
_SHOWN_DIGITS: Final = 32  # of the digest's 64


CountParts: TypeAlias = Callable[[int, int], None]
"""Takes the number of parts that are done, and that of all parts."""


def ignore_parts(_done: int, _total: int) -> None:
    """Ignore how many parts are done."""


def fingerprint(
    version: str,
    names: Iterable[str],
    read: Callable[[str], Matrix],
    progress: CountParts = ignore_parts,
    *,
    known: Mapping[str, TensorDigest] | None = None,
) -> str:
    """Return the fingerprint of a model, a digest of its RWKV `version` and its tensors, as 32 hexadecimal digits.

    Calls `read` for each of `names`, unless `known` has a whole digest of that tensor. Calls `progress` with the number
    of tensors that are done and that of all. Blocks until all are read; holds one at a time, or some rows of it.
    """
    digest = hashlib.sha256(version.encode())
    ordered = sorted(names)
    for done, name in enumerate(ordered):
        progress(done, len(ordered))
        found = (known or {}).get(name)
        if found is None or not found.is_whole:
            found = TensorDigest.of(read(name))
        digest.update(found.describe(name))
    return digest.hexdigest()[:_SHOWN_DIGITS]


def with_settings(weights: str, settings: str) -> str:
    """Return the fingerprint of `weights` with a text of `settings` that change the outputs, if there are any."""
    return hashlib.sha256(f"{weights} {settings}".encode()).hexdigest()[:_SHOWN_DIGITS] if settings else weights


class TensorDigest:
    """The part of a fingerprint that one tensor of `shape` gives, of pieces that several threads read.

    Pieces are hashed in the order of their rows, on the thread that has added the one that was missing. So whoever
    loads a model needs to read it only once.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._kind = ""
        self._chunks = (_Chunks(), _Chunks())  # two kinds of bytes where the tensor is in blocks
        self._lock = threading.Lock()
        self._next = 0  # row
        self._is_busy = False
        self._waiting: dict[int, NDArray[Any] | Blocks] = {}

    @classmethod
    def of(cls, tensor: Matrix) -> Self:
        """Return the digest of a whole tensor."""
        digest, first = cls(tensor.shape), 0
        for piece in _pieces(tensor):
            digest.add(first, piece)
            first += piece.shape[0] if piece.shape else 1
        return digest

    @property
    def is_whole(self) -> bool:
        """True if all rows were hashed."""
        with self._lock:
            return not self._is_busy and self._next >= (self._shape[0] if self._shape else 1)

    def add(self, first: int, piece: NDArray[Any] | Blocks) -> None:
        """Hash rows from `first` on, now or when those before have come. Ignores rows that came before.

        Nothing may write to `piece` later.
        """
        with self._lock:
            if first < self._next or len(self._waiting) >= _MOST_WAITING:
                return
            self._waiting[first] = piece
            if self._is_busy:
                return
            self._is_busy = True
        while (rows := self._take()) is not None:
            if isinstance(rows, Blocks):
                self._kind = rows.format.name
                self._chunks[0].add(rows.codes)
                self._chunks[1].add(rows.figures)
            else:
                self._kind = rows.dtype.name
                self._chunks[0].add(rows)

    def _take(self) -> NDArray[Any] | Blocks | None:
        with self._lock:
            rows = self._waiting.pop(self._next, None)
            if rows is None:
                self._is_busy = False
            else:
                self._next += rows.shape[0] if rows.shape else 1
            return rows

    def describe(self, name: str) -> bytes:
        """Return the bytes that the tensor adds to a fingerprint: name, type, shape, and digests of its chunks."""
        return f"\n{name} {self._kind} {self._shape} ".encode() + b"".join(part.finish() for part in self._chunks)


def _pieces(tensor: Matrix) -> Iterator[NDArray[Any] | Blocks]:
    """Yield a tensor whole, or in pieces of rows that are read ahead from the file."""
    if isinstance(tensor, StoredRows):
        step = min(PIECE_WEIGHTS // tensor.shape[1], len(tensor) // _LEAST_PIECES)
        yield from map_rows(lambda rows: rows, tensor, max(1, step))
    else:
        yield tensor


class _Chunks:
    """The digests of the chunks of a tensor's bytes, which come in pieces of any length."""

    def __init__(self) -> None:
        self._digests = b""
        self._current = hashlib.sha256()
        self._length = 0  # of the current chunk

    def add(self, piece: NDArray[Any]) -> None:
        rest = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
        while rest:
            part, rest = rest[: _CHUNK_BYTES - self._length], rest[_CHUNK_BYTES - self._length :]
            self._current.update(part)
            self._length += len(part)
            if self._length == _CHUNK_BYTES:
                self._close()

    def finish(self) -> bytes:
        if self._length:
            self._close()
        return self._digests

    def _close(self) -> None:
        self._digests += self._current.digest()
        self._current, self._length = hashlib.sha256(), 0


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
    if (known := find_recorded(path, stamp)) is not None:
        return known
    settled = time.time_ns() - max(stamp.modified, stamp.status_changed) > _SETTLED_NANOSECONDS
    found = compute()
    if settled and stamp.size >= RECORDED_BYTES:
        _write(path, {**_key(path, stamp), "fingerprint": found})
    return found


def find_recorded(path: Path, stamp: FileStamp) -> str | None:
    """Return the fingerprint that an earlier run recorded for the file at `path` with this `stamp`; None for none."""
    kept = (read_record(_record(path)) if stamp.size >= RECORDED_BYTES else None) or {}
    known = kept.pop("fingerprint", None)
    return known if isinstance(known, str) and kept == _key(path, stamp) else None


def _key(path: Path, stamp: FileStamp) -> dict[str, object]:
    return {"recipe": _RECIPE, "path": str(path.resolve()), **asdict(stamp)}


def _record(path: Path) -> Path:
    return cache_folder() / "fingerprints" / f"{short_digest(str(path.resolve()))}.json"


def _write(path: Path, content: dict[str, object]) -> None:
    try:
        write_record(_record(path), content)
    except OSError as error:
        _log.warning("the model's fingerprint can't be saved, so the next load computes it again: %s", error)
