"""Take over a folder of jobs as former versions wrote it.

They had a file of JSON for each record, one for each content, and a database of conversations. All records come into
the database in one change, and contents get a second name among the blobs. The former files are deleted only then, so a
start that is interrupted begins anew.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import StateError
from rnn_engine.files import read_record
from rnn_engine_server.store import events
from rnn_engine_server.store.batches import BATCH_ID, BATCHES, RESULTS, Batch
from rnn_engine_server.store.blobs import Blobs
from rnn_engine_server.store.conversations import CONVERSATIONS, Conversation
from rnn_engine_server.store.events import EventKind
from rnn_engine_server.store.files import FILE_ID, FILES, StoredFile
from rnn_engine_server.store.histories import EVENTS, HistoryRoom
from rnn_engine_server.store.owners import Table
from rnn_engine_server.store.responses import RESPONSES, StoredResponse
from rnn_engine_server.store.tunings import BLOBS, TUNING_ID, TUNINGS, TuningJob

_Record = StoredFile | Batch | TuningJob
_RECORD, _CONTENT, _EVENTS = ".json", ".data", ".events"
_CONVERSATIONS: Final = "conversations.sqlite"
_KINDS: Final[dict[str, tuple[Table[Any], TypeAdapter[Any]]]] = {  # by the beginning of the ids
    FILE_ID: (FILES, TypeAdapter(StoredFile)),
    BATCH_ID: (BATCHES, TypeAdapter(Batch)),
    TUNING_ID: (TUNINGS, TypeAdapter(TuningJob)),
}
_log = logging.getLogger(__name__)


def take_over(folder: Path, database: Database, blobs: Blobs, room: HistoryRoom) -> None:
    """Move what a former version has left in a folder into the database and the blobs. Blocks.

    Damaged records are logged and stay where they are. Raises OSError, StorageError and StateError.
    """
    _take_over_jobs(folder, database, blobs)
    _take_over_conversations(folder, database, blobs, room)


def _take_over_jobs(folder: Path, database: Database, blobs: Blobs) -> None:
    paths = [path for start in _KINDS for path in sorted(folder.glob(f"{start}*")) if path.is_file()]
    if not paths:
        return
    _log.warning("%s is of a former version: its %d files are taken over", folder, len(paths))
    damaged = set[str]()
    found: list[tuple[float, Table[Any], _Record]] = []
    for path in paths:
        if path.suffix == _RECORD:
            table, kind = next(each for start, each in _KINDS.items() if path.name.startswith(start))
            try:
                record = kind.validate_python(read_record(path))
            except ValidationError:
                _log.warning("%s is left out: it is damaged", path)
                damaged.add(path.stem)
            else:
                found.append((record.created, table, record))
    found.sort(key=lambda each: each[0])
    whole = {record.id for _, _, record in found}
    for path in paths:
        name = path.stem if path.suffix == _CONTENT else path.name
        if path.stem in whole and path.suffix in (_CONTENT, *(f".{ending}" for ending in (*RESULTS, *BLOBS))):
            _link(path, blobs.path(name))

    def write(transaction: Transaction) -> None:
        for _, table, record in found:
            table.put(transaction, record)
            if isinstance(record, TuningJob):
                _add_events(transaction, record, folder / f"{record.id}{_EVENTS}")
            if not isinstance(record, StoredFile) and not record.has_ended:
                for file_id in record.inputs:
                    transaction.execute("INSERT OR IGNORE INTO held_files VALUES (?, ?)", (file_id, record.id))

    database.write_now(write)
    for path in paths:
        if path.stem not in damaged:
            path.unlink()


def _link(path: Path, to: Path) -> None:
    to.unlink(missing_ok=True)
    try:
        os.link(path, to)
    except OSError:  # a file system without links
        shutil.copyfile(path, to)


def _add_events(transaction: Transaction, job: TuningJob, path: Path) -> None:
    events.delete(transaction, job.id)
    with suppress(FileNotFoundError), path.open("rb") as lines:
        for line in lines:
            with suppress(ValueError, KeyError):  # a part of a line that a crash has left
                event = from_json(line)
                data, message = event["data"], event["message"]
                kind: EventKind = "started" if message == "Fine-tuning job started" else "message"
                if data is not None:
                    kind = "update" if "train_loss" in data else "judgement"
                what = message, event["level"], kind, None if data is None else data["step"], data, event["id"]
                events.add(transaction, job.id, event["created"], *what)


def _take_over_conversations(folder: Path, database: Database, blobs: Blobs, room: HistoryRoom) -> None:
    """Move a former database of conversations and responses. What of it is damaged is left out, and a copy is kept."""
    path = folder / _CONVERSATIONS
    if not path.exists():
        return
    _log.warning("%s is of a former version: its conversations and responses are taken over", path)
    damage = list[sqlite3.DatabaseError]()

    def write(transaction: Transaction) -> None:
        with closing(sqlite3.connect(path)) as former:

            def read(query: str) -> Iterator[Any]:
                """Yield the rows up to the first that can't be read."""
                try:
                    yield from former.execute(query)
                except sqlite3.DatabaseError as error:
                    _log.warning("a part of %s is left out: it is damaged: %s", path, error)
                    damage.append(error)

            version = next(read("PRAGMA user_version"), (0,))[0]
            if version > 1:
                raise StateError(f"{path}: its format is {version}, of a later version; expected at most 1")
            _copy_histories(read, transaction, room)
        room.mend(transaction)

    events = sorted(folder.glob(f"resp_*{_EVENTS}"))
    for each in events:
        _link(each, blobs.path(f"{each.stem}.{EVENTS}"))
    database.write_now(write)
    for each in (*events, *folder.glob(f"{_CONVERSATIONS}*")):
        if damage and each.name.startswith(_CONVERSATIONS):
            each.rename(each.with_name(f"{each.name}.damaged"))
        else:
            each.unlink()


def _copy_histories(read: Callable[[str], Iterator[Any]], transaction: Transaction, room: HistoryRoom) -> None:
    """Copy what `read` returns of a former database of conversations; the uses of its turns are not counted."""
    [first] = transaction.execute("SELECT coalesce(max(number), 0) FROM turns").fetchone()
    turns = f"""SELECT number + {first}, owner, parent + {first}, num_bytes,
        (SELECT count(*) FROM items WHERE turn = turns.number) FROM turns"""
    insert = "INSERT INTO turns (number, owner, parent, num_bytes, num_items, uses) VALUES (?, ?, ?, ?, ?, 0)"
    transaction.executemany(insert, read(turns))
    items = f"SELECT turn + {first}, id, type, fields FROM items ORDER BY number"
    transaction.executemany("INSERT INTO items (turn, id, type, fields) VALUES (?, ?, ?, ?)", read(items))
    kept = f"""SELECT id, owner, kind, created, used, expires, body, turn + {first}, request, events_bytes,
        iif(request IS NULL, (SELECT num_bytes FROM turns WHERE number = turn), 0) FROM kept ORDER BY created"""
    for kept_id, owner, kind, created, used, expires, body, turn, request, events_bytes, output_bytes in read(kept):
        with suppress(ValueError):  # it is damaged
            texts = from_json(body)
            if kind == "conversation":
                room.put(transaction, CONVERSATIONS, Conversation(kept_id, owner, created, texts), turn, used=used)
            else:
                sizes = len(body), output_bytes or 0, len(request or b""), events_bytes
                made = StoredResponse(kept_id, owner, created, expires, texts["background"], *sizes)
                when = used if request is None else None
                room.put(transaction, RESPONSES, made, turn, used=when, body=body, request=request)
