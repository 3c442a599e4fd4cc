"""The tier on disk, which survives a restart: one full-state file for each checkpoint in a folder of one process.

A file that is damaged, of another model or not readable is skipped with a log line and never loaded. Files are
written by a `Writer`; until it is done a checkpoint is served from the arrays that wait.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rnn_engine.atomic_file import TEMPORARY_SUFFIX
from rnn_engine.errors import StateError
from rnn_engine.types import ModelShape
from states.cache.checkpoint import Checkpoint, CheckpointKind, Tier
from states.cache.eviction import EvictionQueue
from states.cache.tiers.writer import Writer
from states.files.full import Origin, SavedState, full_state_bytes, read_full_state, read_summary, save_full_state
from states.payload import Payload, Precision

SUFFIX = ".state"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of an earlier run that belongs to this model."""

    path: Path
    origin: Origin
    tokens: bytes  # packed
    has_logits: bool
    num_bytes: int


class DiskTier:
    """Copies in files. All methods are called on one thread; the writer's runs `_write`, the reader's `_read`."""

    def __init__(
        self, folder: Path, capacity: int, precision: Precision, model: str, shape: ModelShape, writer: Writer
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ledger = EvictionQueue(Tier.DISK, capacity)
        self._folder = folder
        self._precision: Precision = precision
        self._model = model
        self._shape = shape
        self._writer = writer
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="state-reader")
        self._paths: dict[Checkpoint, Path] = {}
        self._lock = threading.Lock()  # guards the two below, which both threads use
        self._waiting: dict[Path, SavedState] = {}
        self._failed: list[tuple[Path, SavedState]] = []

    def find_files(self) -> list[FoundFile]:
        """The files of earlier runs, the longest unused first. Call it once, before anything is put."""
        for leftover in self._folder.glob(f"*{TEMPORARY_SUFFIX}"):
            leftover.unlink(missing_ok=True)
        paths = sorted(self._folder.glob(f"*{SUFFIX}"), key=_modified)
        return [found for found in map(self._inspect, paths) if found is not None]

    def adopt(self, checkpoint: Checkpoint, found: FoundFile) -> None:
        """Count a file of an earlier run as the copy of `checkpoint`."""
        self.ledger.add(checkpoint, found.num_bytes)
        self._paths[checkpoint] = found.path

    def forget_file(self, found: FoundFile) -> None:
        """Delete a file of an earlier run that does not fit any more."""
        found.path.unlink(missing_ok=True)

    def prepare(self, checkpoint: Checkpoint, payload: Payload) -> tuple[SavedState, int]:
        """What is going to be written, and the exact size of the file."""
        origin = Origin(self._model, checkpoint.root, checkpoint.length, checkpoint.kind.value, checkpoint.label)
        saved = SavedState(origin, checkpoint.known_place().tokens(), payload.stored_as(self._precision))
        return saved, full_state_bytes(saved, self._shape.version)

    def put(self, checkpoint: Checkpoint, saved: SavedState, num_bytes: int, *, wait: bool = False) -> bool:
        """Write what `prepare` gave. The ledger must have room for it. False where the writer is too far behind."""
        path = self._folder / _file_name(saved.origin, saved.tokens)
        with self._lock:
            self._waiting[path] = saved
        if not self._writer.submit(lambda: self._write(path, saved), num_bytes, wait=wait):
            with self._lock:
                del self._waiting[path]
            return False
        self.ledger.add(checkpoint, num_bytes)
        self._paths[checkpoint] = path
        return True

    def get_waiting(self, checkpoint: Checkpoint) -> Payload | None:
        """What is kept of a checkpoint whose file is not written yet; None where it is."""
        with self._lock:
            waiting = self._waiting.get(self._paths[checkpoint])
        return None if waiting is None else waiting.payload

    def start_read(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Have the file of a checkpoint read on the reader's thread.

        The result raises StateError where the file can't be used: drop the copy then.
        """
        return self._reader.submit(self._read, self._paths[checkpoint], checkpoint.has_logits)

    def drop(self, checkpoint: Checkpoint) -> None:
        """Delete the file."""
        path = self._paths.pop(checkpoint)
        self.ledger.remove(checkpoint)
        with self._lock:
            self._waiting.pop(path, None)
            path.unlink(missing_ok=True)

    def take_failed(self) -> list[Checkpoint]:
        """The checkpoints whose files could not be written since the last call: drop them."""
        with self._lock:
            failed, self._failed = self._failed, []
            lost = {path for path, saved in failed if self._waiting.get(path) is saved}
        return [checkpoint for checkpoint, path in self._paths.items() if path in lost] if lost else []

    def close(self) -> None:
        """Return when every file is written and no file is being read."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.close()

    def _read(self, path: Path, has_logits: bool) -> Payload:
        saved = read_full_state(path, self._shape, self._model)
        if _file_name(saved.origin, saved.tokens) != path.name:
            raise StateError(f"{path.name}: is not named after its tokens")
        if (saved.payload.logits is not None) != has_logits:
            raise StateError(f"{path.name}: is another file than the one that was written or found")
        path.touch()
        return saved.payload

    def _write(self, path: Path, saved: SavedState) -> None:
        try:
            with self._lock:
                if self._waiting.get(path) is not saved:
                    return  # dropped, or replaced by a later one
            save_full_state(path, saved, self._shape.version)
        except OSError as error:
            _log.warning("a checkpoint can't be written: %s: %s", path.name, error)
            with self._lock:
                self._failed.append((path, saved))
            return
        with self._lock:
            if self._waiting.get(path) is saved:
                del self._waiting[path]
            elif path not in self._waiting:
                path.unlink(missing_ok=True)  # dropped while it was being written

    def _inspect(self, path: Path) -> FoundFile | None:
        try:
            summary = read_summary(path, self._model)
            CheckpointKind(summary.origin.kind)
            num_bytes = path.stat().st_size
        except (StateError, OSError, ValueError) as error:
            _log.warning("a state file is skipped: %s", error)
            return None
        if not summary.tokens or _file_name(summary.origin, summary.tokens) != path.name:
            _log.warning("a state file is skipped: %s is not named after its tokens", path.name)
            return None
        return FoundFile(path, summary.origin, summary.tokens, summary.has_logits, num_bytes)


def _file_name(origin: Origin, tokens: bytes | None) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for text in (origin.model, origin.initial_state):
        digest.update(f"{len(text)}:{text}".encode())
    digest.update(tokens or b"")
    return digest.hexdigest() + SUFFIX


def _modified(path: Path) -> float:
    return path.stat().st_mtime
