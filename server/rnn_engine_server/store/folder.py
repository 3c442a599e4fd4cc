"""A folder of jobs: one database and a folder of blobs, which one process at a time may use."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Final

from rnn_engine.database import Database
from rnn_engine.errors import StateError
from rnn_engine_server.core.bodies import storage_errors
from rnn_engine_server.core.kept import KeptUsage
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.jobs.lines import LineCounts
from rnn_engine_server.store import batches, tunings
from rnn_engine_server.store.batches import BATCHES, Batches
from rnn_engine_server.store.files import FILES, Blobs, Files
from rnn_engine_server.store.histories import EVENTS, HistoryRoom
from rnn_engine_server.store.owners import Room, ended_in
from rnn_engine_server.store.responses import RESPONSES, Conversations, Responses
from rnn_engine_server.store.tunings import TUNINGS, Tunings
from rnn_engine_states.files.exchange import OwnedFolder

FOLDER_LOCK: Final = "jobs-in-use.lock"
TEMPORARY_FOLDER: Final = "rnn-engine-jobs-"  # the beginning of the names of temporary folders of jobs

_DATABASE: Final = "jobs.sqlite"
_BLOBS: Final = "blobs"
_FORMER: Final = ("file-*.json", "batch_*.json", "ftjob-*.json", "conversations.sqlite")  # of versions before 0.2.0
_SCHEMA: Final = resources.files("rnn_engine_server.store") / "schema"
_THINGS: Final = (("files", "batches", "tunings"), ("conversations", "responses"))
"""The tables of things that each format of the database has beside those of the one before."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreReadings:
    """What is in a folder of jobs at one moment, and what its jobs have done since the start."""

    num_files: int
    file_bytes: int  # with the results of jobs that have not ended
    file_capacity: int
    database_bytes: int
    unused_bytes: int  # of the database
    num_events: int
    batches: Mapping[str, int]  # how many are in each status
    lines: LineCounts
    num_stops: int  # of batches by faults of the server
    tunings: Mapping[str, int]  # how many are in each status
    updates: int
    tokens: int  # that were trained


class Store:
    """What clients leave, in one folder: files, jobs, conversations and responses. An owner sees its own alone."""

    def __init__(
        self, folder: Path | None = None, limits: Limits | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the `folder`, which is created if it is missing, and delete what crashes left unfinished. Blocks.

        None is a temporary folder, which is made when it is first needed, and deleted when the store is closed. When it
        is made, those that killed processes have left are deleted. Damaged records are logged and left out. Raises
        StateError if the folder can't be used, if another process uses it, or if a former version has written it.
        """
        self.limits = limits or Limits()
        self.now = clock
        """Returns the Unix time in seconds."""
        self._folder = folder
        self._owned = None if folder is None else _own(folder)
        self._making = threading.Lock()
        self._delete_folder: Callable[[], object] | None = None
        self._room = Room(self.limits)
        self._database = Database(
            "the folder of jobs", lambda: self.folder / _DATABASE, _read_schema(), lasting=folder is not None
        )
        self.blobs = Blobs(lambda: self.folder / _BLOBS)
        self.files = Files(self._database, self.blobs, self._room, clock)
        self.batches = Batches(self._database, self.files, self.limits)
        self.tunings = Tunings(self._database, self.files, self.limits)
        self.histories = HistoryRoom(self._database, self.blobs, self.limits, clock)
        self.conversations = Conversations(self.histories)
        self.responses = Responses(self.histories, self.conversations)
        if folder is not None:
            try:
                self._recover()
            except BaseException:
                self.close()
                raise

    @property
    def folder(self) -> Path:
        """The folder. Raises StorageError if a temporary one can't be made."""
        with self._making:
            if self._folder is None:
                for lock in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_FOLDER}*/{FOLDER_LOCK}"):
                    delete_abandoned(lock.parent)
                with storage_errors("a temporary folder of jobs can't be made"):
                    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_FOLDER))
                self._owned = _own(folder)
                self._folder = folder
                self._delete_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder

    @property
    def persistent(self) -> bool:
        """Whether the folder outlives the process."""
        return self._owned is not None and self._delete_folder is None

    def readings(self) -> StoreReadings:
        """Return the present counts, for metrics. Blocks."""

        def read(db: sqlite3.Connection) -> tuple[Counter[str], Counter[str], int]:
            [num_events] = db.execute("SELECT count(*) FROM events").fetchone()
            return BATCHES.statuses(db), TUNINGS.statuses(db), num_events

        num_files, file_bytes = self._room.total
        nothing = Counter[str](), Counter[str](), 0
        in_batches, in_tunings, num_events = nothing if self._folder is None else self._database.read_now(read)
        num_bytes, unused = self._database.num_bytes
        return StoreReadings(
            num_files,
            file_bytes,
            self.limits.max_all_file_bytes,
            num_bytes,
            unused,
            num_events,
            {status: in_batches[status] for status in batches.FOLLOWS},
            replace(self.batches.lines),
            self.batches.num_stops,
            {status: in_tunings[status] for status in tunings.FOLLOWS},
            self.tunings.updates,
            self.tunings.tokens,
        )

    @property
    def history_usage(self) -> KeptUsage:
        """How many conversations and responses there are, and their bytes. Blocks."""
        nothing = self._folder is None  # a folder is not made for this
        return KeptUsage(0, 0, 0) if nothing else self._database.read_now(self.histories.usage)

    def close(self) -> None:
        """Unlock the folder, and delete it if it is temporary. Blocks. Idempotent."""
        self._database.close()
        if self._owned is not None:
            self._owned.release()
        if self._delete_folder is not None:
            self._delete_folder()

    def _recover(self) -> None:
        """Count the room that is in use, and make blobs and records agree."""
        self._database.read_now(lambda _: None)  # so that it is open
        if self._database.was_damaged:
            self._database.write_now(self.histories.mend)
        known = set[str]()

        def read(db: sqlite3.Connection) -> None:
            for stored in FILES.select(db, "TRUE"):
                known.add(stored.id)
                self._room.give(stored.owner, -1, -stored.num_bytes)
                if not self.blobs.has(stored.id):
                    _log.warning("the content of the file %s (%r) is gone", stored.id, stored.filename)
            for batch in BATCHES.select(db, f"status NOT IN ({ended_in(batches.FOLLOWS)})"):
                names = [f"{batch.id}.{name}" for name in batches.RESULTS] + [batch.output_id, batch.error_id]
                known.update(names)
                self._room.give(batch.owner, -len(batches.RESULTS), -sum(map(self.blobs.num_bytes, names)))
            for job in TUNINGS.select(db, f"status NOT IN ({ended_in(tunings.FOLLOWS)})"):
                known.update((job.result_file, *job.blobs))
                self._room.give(job.owner, -1, 0)
            known.update(f"{each.id}.{EVENTS}" for each in RESPONSES.select(db, f"label = '{EVENTS}'"))

        self._database.read_now(read)
        self.blobs.sweep(known, keep=self._database.was_damaged)


def _read_schema() -> list[str]:
    """Return the script that makes each format of the database of the one before."""
    table = (_SCHEMA / "things.sql").read_text("utf-8")
    return [
        "\n".join([(_SCHEMA / f"{number}.sql").read_text("utf-8"), *(table.replace("THINGS", name) for name in names)])
        for number, names in enumerate(_THINGS, 1)
    ]


def _own(folder: Path) -> OwnedFolder:
    return OwnedFolder(folder, "folder of jobs", FOLDER_LOCK, _FORMER)


def delete_abandoned(folder: Path) -> bool:
    """Delete a folder of jobs that no process uses. Return False if one does, or if the folder can't be used."""
    try:
        _own(folder).release()
    except StateError:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True
