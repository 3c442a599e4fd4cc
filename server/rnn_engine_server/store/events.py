"""The events of jobs: rows with an index, so a part of them is read without the others, in a list or a stream."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from rnn_engine.database import Transaction
from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.store.owners import Cursor, Page

Level: TypeAlias = Literal["info", "warn", "error"]
Number: TypeAlias = float | int | None
EventKind: TypeAlias = Literal[
    "message", "started", "rate", "update", "judgement", "checkpoint", "early_end", "room", "result"
]
"""What an event says. All but `message` happen once to a job, or once in each of its steps."""

_COLUMNS: Final = "number, id, created, level, message, data"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened to a job: a message, perhaps with figures."""

    number: int  # in the order of events
    id: str
    created: float  # Unix time, seconds
    level: Level
    message: str
    data: Mapping[str, Number] | None = None  # figures of a step


def add(
    transaction: Transaction,
    job_id: str,
    now: float,
    message: str,
    level: Level = "info",
    kind: EventKind = "message",
    place: float | None = None,
    data: Mapping[str, Number] | None = None,
) -> bool:
    """Write an event, and return True; False if a job has it already, as a run that goes on repeats some."""
    figures = None if data is None else json.dumps(data)
    row = (job_id, f"ftevent-{uuid4().hex}", now, level, message, kind, place, figures)
    insert = "INSERT OR IGNORE INTO events (job, id, created, level, message, kind, place, data) VALUES "
    return transaction.execute(f"{insert} (?, ?, ?, ?, ?, ?, ?, ?)", row).rowcount > 0


def page(connection: sqlite3.Connection, job_id: str, cursor: Cursor) -> Page[Event]:
    """Return a part of the events of a job. Raises InvalidRequestError if the cursor is not at one of them."""
    condition, values = "job = ?", [job_id]
    if cursor.after is not None:
        query = "SELECT number FROM events WHERE job = ? AND id = ?"
        if (found := connection.execute(query, (job_id, cursor.after)).fetchone()) is None:
            raise InvalidRequestError("after", cursor.after, "the id of an item in this list")
        condition += f" AND number {'>' if cursor.ascending else '<'} ?"
        values.append(found[0])
    order = "ASC" if cursor.ascending else "DESC"
    query = f"SELECT {_COLUMNS} FROM events WHERE {condition} ORDER BY number {order} LIMIT ?"
    rows = connection.execute(query, (*values, cursor.limit + 1)).fetchall()
    return Page([_event(*row) for row in rows[: cursor.limit]], len(rows) > cursor.limit)


def after(connection: sqlite3.Connection, job_id: str, number: int, limit: int) -> list[Event]:
    """Return the first events of a job after the one with a number, at most `limit`."""
    query = f"SELECT {_COLUMNS} FROM events WHERE job = ? AND number > ? ORDER BY number LIMIT ?"
    return [_event(*row) for row in connection.execute(query, (job_id, number, limit))]


def delete(transaction: Transaction, job_id: str) -> None:
    """Delete the events of a job."""
    transaction.execute("DELETE FROM events WHERE job = ?", (job_id,))


def table_of_steps(connection: sqlite3.Connection, job_id: str) -> str:
    """Return the figures of all steps of a job as CSV."""
    names = ("learning_rate", "train_loss", "valid_loss", "tokens")
    figures = ", ".join(f"max(json_extract(data, '$.{name}'))" for name in names)
    query = f"SELECT place, {figures} FROM events WHERE job = ? AND data IS NOT NULL GROUP BY place ORDER BY place"
    rows = [",".join(("step", *names))]
    for row in connection.execute(query, (job_id,)):
        rows.append(",".join("" if value is None else f"{value:.6g}" for value in row))
    return "\n".join(rows) + "\n"


def progress(connection: sqlite3.Connection, job_id: str) -> tuple[int, float | None, int]:
    """Return the last step of a job that has an event, its loss, and the tokens of all steps."""
    updates = "FROM events WHERE job = ? AND kind = 'update'"
    query = f"SELECT place, json_extract(data, '$.train_loss') {updates} ORDER BY place DESC LIMIT 1"
    step, loss = connection.execute(query, (job_id,)).fetchone() or (0, None)
    [tokens] = connection.execute(f"SELECT total(json_extract(data, '$.tokens')) {updates}", (job_id,)).fetchone()
    return int(step), loss, int(tokens)


def _event(number: int, event_id: str, created: float, level: Level, message: str, data: str | None) -> Event:
    figures = None
    if data is not None:
        try:
            figures = json.loads(data)
        except ValueError:
            _log.warning("the figures of event %s are left out, since they are damaged", event_id)
    return Event(number, event_id, created, level, message, figures)
