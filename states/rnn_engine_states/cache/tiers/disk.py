"""The state cache's tier on disk, which survives a restart: a file for each checkpoint, written on a separate thread.

Files are full-state files. One that is damaged, of another model or not readable is skipped with a log line and never
loaded. It counts towards the tier's bytes, and is deleted as soon as its room is needed.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from rnn_engine.errors import StateError
from rnn_engine.files import TEMPORARY_SUFFIX
from rnn_engine.types import ModelShape
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind
from rnn_engine_states.cache.config import DiskConfig
from rnn_engine_states.cache.tiers.tier import FoundCopy, SlowTier
from rnn_engine_states.files.full import (
    Origin,
    SavedState,
    full_state_file,
    modified,
    read_full_state,
    read_summary,
    write_file,
)
from rnn_engine_states.frozen import Payload

SUFFIX = ".state"

_NAME = re.compile(rf"[0-9a-f]{{40}}{re.escape(SUFFIX)}")
_LEFTOVER = re.compile(rf"{_NAME.pattern}\..*{re.escape(TEMPORARY_SUFFIX)}")
_log = logging.getLogger(__name__)


class DiskTier(SlowTier):
    """The tier of files. `_write` is for the writer's thread, `_read` and `_end_read` for the reader's."""

    name = "disk"

    def __init__(
        self, config: DiskConfig, model: str, shape: ModelShape, writer: Executor, reader: ThreadPoolExecutor
    ) -> None:
        """Store states in the folder of `config`; `writer` and `reader` have one thread each until `close`."""
        super().__init__(config, model, shape, capacity=config.capacity, patience=None)
        config.folder.mkdir(parents=True, exist_ok=True)
        self._folder = config.folder
        self._writer = writer
        self._reader = reader
        self._names: dict[Checkpoint, str] = {}  # of files
        self._skipped = deque[tuple[str, int]]()  # files that can't be used, with their bytes; the oldest first
        self._skipped_bytes = 0
        self._failing = False  # the last write failed
        self._lock = threading.Lock()  # guards the attributes below, which several threads use
        self._used: set[str] = set()  # the files of the tier's checkpoints; others are deleted
        self._reads: Counter[str] = Counter()  # under way, by file

    def find_copies(self) -> Sequence[FoundCopy]:
        for leftover in self._folder.glob(f"*{TEMPORARY_SUFFIX}"):
            if _LEFTOVER.fullmatch(leftover.name):
                with suppress(OSError):
                    leftover.unlink()  # of a write that a crash interrupted
        paths = sorted(self._folder.glob(f"*{SUFFIX}"), key=modified)
        copies = {found.key: found for found in map(self._inspect, paths) if found is not None}
        for path in paths:
            if path.name not in copies and _NAME.fullmatch(path.name):
                with suppress(OSError):
                    self._skipped.append((path.name, path.stat().st_size))
        self._skipped_bytes = sum(num_bytes for _, num_bytes in self._skipped)
        self._delete_skipped()
        return list(copies.values())

    def adopt(self, checkpoint: Checkpoint, found: FoundCopy) -> None:
        super().adopt(checkpoint, found)
        self._use(checkpoint, found.key)

    def discard(self, found: FoundCopy) -> None:
        self._delete_unused(found.key)

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Start to read a checkpoint's file on the reader's thread. The future raises StateError if that fails."""
        name = self._names[checkpoint]
        with self._lock:
            self._reads[name] += 1
        future = self._reader.submit(self._read, name, checkpoint.has_logits)
        future.add_done_callback(lambda _: self._end_read(name))
        return future

    def drop(self, checkpoint: Checkpoint) -> None:
        self.queue.remove(checkpoint)
        if (write := self._writes.pop(checkpoint, None)) is not None:
            write.future.cancel()
        name = self._names.pop(checkpoint)
        with self._lock:
            self._used.discard(name)
        self._delete_unused(name)

    def close(self) -> None:
        """Wait until every file is written and no file is being read, and end both threads."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        super().close()

    def _enter(self, checkpoint: Checkpoint, num_bytes: int) -> None:
        super()._enter(checkpoint, num_bytes)
        self._delete_skipped()

    def _delete_skipped(self) -> None:
        """Delete skipped files until all files together have at most the bytes that the tier may have."""
        while self._skipped and self._skipped_bytes > self.queue.free:
            name, num_bytes = self._skipped.popleft()
            self._skipped_bytes -= num_bytes
            self._delete_unused(name)

    def _use(self, checkpoint: Checkpoint, name: str) -> None:
        self._names[checkpoint] = name
        with self._lock:
            self._used.add(name)

    def _start_write(self, checkpoint: Checkpoint, saved: SavedState) -> Future[None]:
        name = _file_name(saved.origin, saved.tokens)
        self._use(checkpoint, name)
        return self._writer.submit(self._write, name, saved)

    def _write(self, name: str, saved: SavedState) -> None:
        try:
            write_file(self._folder / name, *full_state_file(saved, self._shape.version))
        except OSError as error:
            if not self._failing:  # a full disk is logged once, until it takes files again
                _log.warning("a checkpoint can't be written: %s: %s", name, error)
            self._failing = True
            raise
        self._failing = False
        self._delete_unused(name)  # if the checkpoint was dropped meanwhile

    def _read(self, name: str, has_logits: bool) -> Payload:
        path = self._folder / name
        saved = read_full_state(path, self._shape, self._model)
        if _file_name(saved.origin, saved.tokens) != name:
            raise StateError(f"{name}: is not named after its tokens")
        if (saved.payload.logits is not None) != has_logits:
            raise StateError(f"{name}: was replaced by another file after this server wrote or found it")
        with suppress(OSError):  # a folder that can't be written to can be read
            path.touch()
        return saved.payload

    def _end_read(self, name: str) -> None:
        with self._lock:
            self._reads[name] -= 1
            if self._reads[name] == 0:
                del self._reads[name]
        self._delete_unused(name)

    def _delete_unused(self, name: str) -> None:
        """Delete a file that no checkpoint has or reads, for any thread; if that fails, the next start tries again."""
        with self._lock:
            if name in self._used or name in self._reads:
                return
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                if not self._failing:
                    _log.warning("a state file can't be deleted: %s: %s", name, error)

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
