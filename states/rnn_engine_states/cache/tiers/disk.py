"""The state cache's tier on disk, which survives a restart: a file for each checkpoint, written on a separate thread.

Files are full-state files. One that is damaged, of another model or not readable is skipped with a log line and never
loaded. A `Writer` writes the files; until a file is written, its checkpoint is served from the arrays that wait for the
writer.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from rnn_engine.errors import StateError
from rnn_engine.files import TEMPORARY_SUFFIX
from rnn_engine.types import F32, ModelShape
from rnn_engine_states.cache.checkpoint import Checkpoint, CheckpointKind
from rnn_engine_states.cache.config import DiskConfig
from rnn_engine_states.cache.eviction import EvictionQueue
from rnn_engine_states.cache.tiers.tier import FoundCopy, MakeRoom, PendingPayload, ReadyPayload, Tier
from rnn_engine_states.files.full import (
    Origin,
    SavedState,
    full_state_bytes,
    modified,
    read_full_state,
    read_summary,
    save_full_state,
)
from rnn_engine_states.frozen import Payload, Precision


class StateFileForm:
    """Makes the content of checkpoints' state files for one model, and computes the files' sizes."""

    def __init__(self, model: str, shape: ModelShape, precision: Precision) -> None:
        """Prepare to make files for the model with the fingerprint `model` and `shape`, with arrays in `precision`.

        The fingerprint is of all settings that must be equal for a state to be continued.
        """
        self._model = model
        self._shape = shape
        self._precision: Precision = precision
        self._sample = _sample_payload(shape, precision)

    def saved(self, checkpoint: Checkpoint, payload: Payload) -> SavedState:
        """Return the content of a checkpoint's state file, given its arrays as `payload`."""
        return self._saved(checkpoint, payload.stored_as(self._precision))

    def num_bytes(self, saved: SavedState) -> int:
        """Return the exact size in bytes of the state file with the content `saved`."""
        return full_state_bytes(saved, self._shape.version)

    def expected_bytes(self, checkpoint: Checkpoint) -> int:
        """Return the usual size in bytes of a checkpoint's state file."""
        logits = self._sample.logits if checkpoint.has_logits else None
        return self.num_bytes(self._saved(checkpoint, Payload(self._sample.state, logits)))

    def _saved(self, checkpoint: Checkpoint, payload: Payload) -> SavedState:
        origin = Origin(self._model, checkpoint.root, checkpoint.length, checkpoint.kind.value)
        return SavedState(origin, checkpoint.known_place().tokens(), payload)


def _sample_payload(shape: ModelShape, precision: Precision) -> Payload:
    """Return stand-ins for a state's arrays and logits: they have the right shapes and take no memory.

    Serves to compute the sizes of files.
    """
    dtype = np.float16 if precision == "f16" else np.float32
    state = {name: np.broadcast_to(dtype(0), array.shape) for name, array in shape.initial_state().items()}
    logits: F32 = np.broadcast_to(np.float32(0), (shape.row_size,))
    return Payload(state, logits)


# Write-behind: checkpoints are written to a slow tier at a certain age, before a quicker tier evicts them.
#
# So a crash loses only the checkpoints of the last seconds, and not all those in memory.

MOST_READS = 4  # at a time: each has a copy in host memory, and reads from the device take device time

_log = logging.getLogger(__name__)


class WriteBehind:
    """The queue of checkpoints to write to a slow tier: those not old enough yet, and those being read for the write.

    For the thread that owns the device; `is_idle` may be read on any thread.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """Make an empty queue. A checkpoint is written when `seconds` have passed since it was passed to `note`.

        Time is by `clock`.
        """
        self._seconds = seconds
        self._clock = clock
        self._since: dict[Checkpoint, float] = {}  # when `note` was called; the earliest first
        self._reads: dict[Checkpoint, PendingPayload] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint waits to be written to the slow tier."""
        return not self._since and not self._reads

    def note(self, checkpoint: Checkpoint) -> None:
        """Schedule a checkpoint to be written to a slow tier once it is old enough, unless the tier has it by then."""
        self._since.setdefault(checkpoint, self._clock())

    def run(
        self,
        start_read: Callable[[Checkpoint], PendingPayload | None],
        write: Callable[[Checkpoint, Payload], None],
    ) -> None:
        """Start to read the checkpoints that are old enough to be written, and write the copies whose reads have ended.

        Does not wait. `start_read` returns a copy of a checkpoint, or None if it need not be written any more. `write`
        writes the copy that was read. Both may call `note`.
        """
        for checkpoint, pending in list(self._reads.items()):
            if pending.done():
                del self._reads[checkpoint]
                _finish(checkpoint, pending, write)
        for checkpoint, since in list(self._since.items()):
            if self._clock() - since < self._seconds or len(self._reads) >= MOST_READS:
                return
            del self._since[checkpoint]
            started = start_read(checkpoint)
            if started is not None:
                self._reads[checkpoint] = started


def _finish(checkpoint: Checkpoint, pending: PendingPayload, write: Callable[[Checkpoint, Payload], None]) -> None:
    try:
        payload = pending.result()
    except Exception as error:
        _log.warning("a checkpoint is not written to disk: its copy can't be read: %s", error)
        return
    write(checkpoint, payload)


Job: TypeAlias = Callable[[], None]
"""Writes a file and handles its own errors."""


class Writer(Protocol):
    """The interface for running jobs that write files, one after the other in the order of their submission."""

    def submit(self, job: Job, num_bytes: int, *, wait: bool = False) -> bool:
        """Submit a job that writes a file from `num_bytes` of data in memory. Return True if the job was accepted.

        The job runs now or later. If too many bytes wait already, wait if `wait` is true, else return False.
        """
        ...

    def close(self) -> None:
        """Wait until every submitted job has run. Idempotent. No job may be submitted afterwards."""
        ...


class InlineWriter:
    """A `Writer` that runs each job at once, on the caller's thread."""

    def submit(self, job: Job, num_bytes: int, *, wait: bool = False) -> bool:  # noqa: ARG002
        job()
        return True

    def close(self) -> None:
        """Do nothing, since every job ran when it was submitted."""


class BackgroundWriter:
    """A `Writer` that runs jobs on its own thread, with at most `max_bytes` of data waiting.

    One job is always accepted, even if it has more data.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting_bytes = 0
        self._jobs: deque[tuple[Job, int]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job, num_bytes: int, *, wait: bool = False) -> bool:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._has_room(num_bytes))
            elif not self._has_room(num_bytes):
                return False
            self._jobs.append((job, num_bytes))
            self._waiting_bytes += num_bytes
            self._changed.notify_all()
            return True

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _has_room(self, num_bytes: int) -> bool:
        return self._waiting_bytes == 0 or self._waiting_bytes + num_bytes <= self._max_bytes

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                job, num_bytes = self._jobs.popleft()
            try:
                job()
            except Exception:  # a lost file must not stop those after it
                _log.exception("a state file could not be written")
            with self._changed:
                self._waiting_bytes -= num_bytes
                self._changed.notify_all()


SUFFIX = ".state"

_LEFTOVER = re.compile(rf"[0-9a-f]{{40}}{re.escape(SUFFIX)}\..*{re.escape(TEMPORARY_SUFFIX)}")


class DiskTier(Tier):
    """The cache's tier on disk. It stores copies of states in files, which two other threads read and write.

    `_write` runs on the writer's thread, `_read` and `_end_read` on the reader's thread.
    """

    name = "disk"
    slow = True

    def __init__(
        self, config: DiskConfig, model: str, shape: ModelShape, writer: Writer, reader: ThreadPoolExecutor
    ) -> None:
        """Store copies of states as files in the folder of `config`. `reader` must have a single thread.

        `close` closes `writer` and `reader`.
        """
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
        self._lock = threading.Lock()  # guards the attributes below, which several threads use
        self._waiting: dict[str, SavedState] = {}
        self._failed: list[tuple[str, SavedState]] = []
        self._failing = False  # the last write failed
        self._reads: Counter[str] = Counter()  # under way, by file
        self._doomed: set[str] = set()  # files to delete after the last read of each has ended

    def find_copies(self) -> Sequence[FoundCopy]:
        for leftover in self._folder.glob(f"*{TEMPORARY_SUFFIX}"):
            if _LEFTOVER.fullmatch(leftover.name):
                with suppress(OSError):
                    leftover.unlink()  # of a write that a crash interrupted
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
        """Return a checkpoint's copy if its file is still waiting to be written, or None if the file must be read."""
        with self._lock:
            waiting = self._waiting.get(self._names[checkpoint])
        return None if waiting is None else waiting.payload

    def start_read(self, checkpoint: Checkpoint) -> PendingPayload:
        waiting = self.get(checkpoint)
        return self.start_fetch(checkpoint) if waiting is None else ReadyPayload(waiting)

    def start_fetch(self, checkpoint: Checkpoint) -> Future[Payload]:
        """Start to read a checkpoint's file on the reader's thread.

        The future raises StateError if the file can't be used.
        """
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
        """Wait until every file is written and no file is being read, and end both threads."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.close()

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
            if self._reads[name] > 0:
                return
            del self._reads[name]
            if name in self._doomed:
                self._doomed.remove(name)
                self._delete(name)

    def _delete(self, name: str) -> None:
        """Delete a state file, now or after the last read of it has ended. The caller must hold the lock."""
        if name in self._reads:
            self._doomed.add(name)
        else:
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        """Delete a state file. If that fails, leave it: the next start finds the file and checks it again."""
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
            if not self._failing:  # a full disk is logged once, until it takes files again
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
