"""The tier on disk, which survives a restart: one full-state file for each checkpoint in a folder of one process.

A file that is damaged, of another model or not readable is skipped with a log line and never loaded. Files are
written by a `Writer`; until it is done a checkpoint is served from the arrays that wait.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rnn_engine.atomic_file import TEMPORARY_SUFFIX
from rnn_engine.errors import StateError
from rnn_engine.types import ModelShape
from states.cache.checkpoint import Checkpoint, CheckpointKind
from states.cache.config import DiskConfig
from states.cache.eviction import EvictionQueue
from states.cache.tiers.state_files import StateFileForm
from states.cache.tiers.tier import FoundCopy, MakeRoom, PendingPayload, ReadyPayload, Tier
from states.cache.tiers.writer import Writer
from states.files.full import Origin, SavedState, read_full_state, read_summary, save_full_state
from states.files.opening import modified
from states.payload import Payload

SUFFIX = ".state"

_LEFTOVER = re.compile(rf"[0-9a-f]{{40}}{re.escape(SUFFIX)}\..*{re.escape(TEMPORARY_SUFFIX)}")

_log = logging.getLogger(__name__)


class DiskTier(Tier):
    """Copies in files. The writer's thread runs `_write`, the reader's `_read`; all else is the cache's thread."""

    name = "disk"
    slow = True

    def __init__(
        self, config: DiskConfig, model: str, shape: ModelShape, writer: Writer, reader: ThreadPoolExecutor
    ) -> None:
        """`reader` has one thread. Both are closed with the tier."""
        config.folder.mkdir(parents=True, exist_ok=True)
        self.queue = EvictionQueue(self.name, config.capacity)
        self._folder = config.folder
        self.write_after = config.write_after
        self._model = model
        self._shape = shape
        self._form = StateFileForm(model, shape, config.precision)
        self._writer = writer
        self._reader = reader
        self._names: dict[Checkpoint, str] = {}  # of files
        self._lock = threading.Lock()  # guards those below, which several threads use
        self._waiting: dict[str, SavedState] = {}
        self._failed: list[tuple[str, SavedState]] = []
        self._failing = False  # the last write failed
        self._reads: Counter[str] = Counter()  # under way, by file
        self._doomed: set[str] = set()  # files to be deleted when the last read of them has ended

    def find_copies(self) -> Sequence[FoundCopy]:
        for leftover in self._folder.glob(f"*{TEMPORARY_SUFFIX}"):
            if _LEFTOVER.fullmatch(leftover.name):
                with suppress(OSError):
                    leftover.unlink()  # a write that a crash cut short
        paths = sorted(self._folder.glob(f"*{SUFFIX}"), key=modified)
        return [found for found in map(self._inspect, paths) if found is not None]

    def adopt(self, checkpoint: Checkpoint, found: FoundCopy) -> None:
        self.queue.add(checkpoint, found.num_bytes)
        self._names[checkpoint] = found.key

    def discard(self, found: FoundCopy) -> None:
        self._unlink(found.key)

    def copy_bytes(self, checkpoint: Checkpoint) -> int:
        return self._form.expected_bytes(checkpoint)

    def put(self, checkpoint: Checkpoint, payload: Payload, make_room: MakeRoom, *, wait: bool = False) -> bool:
        saved = self._form.saved(checkpoint, payload)
        num_bytes = self._form.num_bytes(saved)
        if not make_room(num_bytes):
            return False
        name = _file_name(saved.origin, saved.tokens)
        with self._lock:
            self._waiting[name] = saved
            doomed = name in self._doomed
            self._doomed.discard(name)
        if not self._writer.submit(lambda: self._write(name, saved), num_bytes, wait=wait):
            with self._lock:
                del self._waiting[name]
                if doomed:
                    self._delete(name)
            self.writes_refused += 1
            return False
        self.queue.add(checkpoint, num_bytes)
        self._names[checkpoint] = name
        return True

    def get(self, checkpoint: Checkpoint) -> Payload | None:
        """The copy while its file is not written yet."""
        with self._lock:
            waiting = self._waiting.get(self._names[checkpoint])
        return None if waiting is None else waiting.payload

    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        waiting = self.get(checkpoint)
        return self.start_fetch(checkpoint) if waiting is None else ReadyPayload(waiting)

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Have the file read on the reader's thread. The result raises StateError where it can't be used."""
        name = self._names[checkpoint]
        with self._lock:
            self._reads[name] += 1
        future = self._reader.submit(self._read, name, checkpoint.has_logits)
        future.add_done_callback(lambda _: self._end_read(name))
        return future

    def drop(self, checkpoint: Checkpoint) -> None:
        name = self._names.pop(checkpoint)
        self.queue.remove(checkpoint)
        with self._lock:
            self._waiting.pop(name, None)
            self._delete(name)

    def take_failed(self) -> Sequence[Checkpoint]:
        with self._lock:
            failed, self._failed = self._failed, []
            lost = {name for name, saved in failed if self._waiting.get(name) is saved}
        return [checkpoint for checkpoint, name in self._names.items() if name in lost] if lost else []

    def close(self) -> None:
        """Return when every file is written and none is being read."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.close()

    def _read(self, name: str, has_logits: bool) -> Payload:
        path = self._folder / name
        saved = read_full_state(path, self._shape, self._model)
        if _file_name(saved.origin, saved.tokens) != name:
            raise StateError(f"{name}: is not named after its tokens")
        if (saved.payload.logits is not None) != has_logits:
            raise StateError(f"{name}: is another file than the one that was written or found")
        with suppress(OSError):  # a folder that can't be written to can be read
            path.touch()
        return saved.payload

    def _end_read(self, name: str) -> None:
        with self._lock:
            self._reads[name] -= 1
            if self._reads[name] > 0:
                return
            del self._reads[name]
            if name in self._doomed:
                self._doomed.remove(name)
                self._delete(name)

    def _delete(self, name: str) -> None:
        """Delete a file, or have that done when the last read of it has ended. The lock is held."""
        if name in self._reads:
            self._doomed.add(name)
        else:
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        """Delete a file, or leave it to the next start, which finds it and its checksums again."""
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            if not self._failing:
                _log.warning("a state file can't be deleted: %s: %s", name, error)

    def _write(self, name: str, saved: SavedState) -> None:
        path = self._folder / name
        try:
            with self._lock:
                if self._waiting.get(name) is not saved:
                    return  # dropped, or replaced by a later one
            save_full_state(path, saved, self._shape.version)
        except OSError as error:
            if not self._failing:  # a full disk is told once, until it takes files again
                _log.warning("a checkpoint can't be written: %s: %s", name, error)
            with self._lock:
                self._failing = True
                self.failed_writes += 1
                self._failed.append((name, saved))
            return
        with self._lock:
            self._failing = False
            if self._waiting.get(name) is saved:
                del self._waiting[name]
            elif name not in self._waiting:
                self._delete(name)  # dropped while it was being written

    def _inspect(self, path: Path) -> FoundCopy | None:
        try:
            summary = read_summary(path, self._model)
            kind = CheckpointKind(summary.origin.kind)
            num_bytes = path.stat().st_size
        except (StateError, OSError, ValueError) as error:
            _log.warning("a state file is skipped: %s", error)
            return None
        if not summary.tokens or _file_name(summary.origin, summary.tokens) != path.name:
            _log.warning("a state file is skipped: %s is not named after its tokens", path.name)
            return None
        root = summary.origin.initial_state
        return FoundCopy(path.name, root, summary.tokens, kind, summary.has_logits, num_bytes)


def _file_name(origin: Origin, tokens: bytes | None) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for text in (origin.model, origin.initial_state):
        digest.update(f"{len(text)}:{text}".encode())
    digest.update(tokens or b"")
    return digest.hexdigest() + SUFFIX
