"""One SQLite file: one thread writes, a few read, and the event loop never waits for the disk.

A change is one transaction, which no kill can undo once its caller goes on, and no power failure if it flushes. Readers
have connections of their own, so a long reading delays no change. There are no more threads and open files than those,
even if many clients call, and the owners of what is stored take turns on them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from rnn_engine.errors import NotFoundError, StateError, StorageError, check_process

T = TypeVar("T")

_NUM_READERS: Final = 3
_RESERVE_BYTES: Final = 1 << 20  # that a deletion may need on a full disk
_LOG_BYTES: Final = 1 << 22  # of the write-ahead log that are kept for the next changes
_ROUNDS: Final = 4  # in which a change that frees room gives it back to the disk, unless it is a short one
_GIVE_BACK: Final = "PRAGMA wal_checkpoint; PRAGMA incremental_vacuum(500)"
"""What gives free pages back to the disk, a few at a time: on a full one, the log has no room to move many at once."""
_MEMORY: Final = Path(":memory:")
_log = logging.getLogger(__name__)


class Transaction:
    """A change of the database. `after` takes what happens after its end, such as deleting a file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.afterwards: list[Callable[[], object]] = []

    def after(self, action: Callable[[], object]) -> None:
        """Call `action` once the change is on the disk. It must not raise."""
        self.afterwards.append(action)


class Reserve:
    """A file beside a database that keeps some room on the disk, so that a deletion has it when the disk is full."""

    def __init__(self, database: Path, num_bytes: int = _RESERVE_BYTES) -> None:
        self.path = database.with_name(f"{database.name}-reserve")
        self.num_bytes = num_bytes
        self.lay()

    def drop(self) -> bool:
        """Give the room back. Return False if it is not there."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def lay(self) -> None:
        """Take the room, unless it is taken or the disk has none."""
        if not self.path.exists():
            try:
                self.path.write_bytes(bytes(self.num_bytes))
            except OSError:
                self.drop()


class _FairThreads:
    """Threads on which owners take turns: each next call is that of the owner who has waited longest for one."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(num_threads, name)
        self._lock = threading.Lock()
        self._waiting: dict[str | None, deque[Callable[[], None]]] = {}  # only owners that have any, in their order

    def submit(self, owner: str | None, function: Callable[[], T]) -> Future[T]:
        future = Future[T]()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        with self._lock:
            self._waiting.setdefault(owner, deque()).append(run)
        self._threads.submit(self._run_next)
        return future

    def shutdown(self) -> None:
        self._threads.shutdown()

    def _run_next(self) -> None:
        with self._lock:
            owner, calls = next(iter(self._waiting.items()))
            run = calls.popleft()
            del self._waiting[owner]
            if calls:
                self._waiting[owner] = calls  # now the last
        run()


class Database:
    """A database of a folder. Thread-safe.

    `read` and `write` call a function with a connection on a thread of the database. Both raise what the function
    raises, and StorageError for an error of SQLite. The `owner` for whom they are called takes turns with others.
    """

    def __init__(
        self, what: str, find_path: Callable[[], Path] | None, schema: Sequence[str], *, lasting: bool
    ) -> None:
        """Prepare a database at the path that `find_path` returns; it is opened when it is first used.

        Messages call it `what`, such as "the folder of jobs". `schema` has for each format of the file the script
        that makes it of the format before; the first one makes it of an empty file. Unless it is `lasting`, nothing
        waits for the disk. Without `find_path` it is in memory, and its one thread also reads.
        """
        self.was_damaged = False  # when it was opened; then rows may be lost
        self._what = what
        self._process = os.getpid()
        self._find_path = find_path or (lambda: _MEMORY)
        self._schema = schema
        self._lasting = lasting
        self._path: Path | None = None
        self._reserve: Reserve | None = None
        self._opening = threading.Lock()
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._writer = _FairThreads(1, "store-writer")
        self._readers = self._writer if find_path is None else _FairThreads(_NUM_READERS, "store-reader")

    async def read(self, query: Callable[[sqlite3.Connection], T], owner: str | None = None) -> T:
        """Call `query` with a connection. It sees all changes that have ended, and none that ends meanwhile."""
        return await asyncio.wrap_future(self._start(self._readers, owner, lambda: self._read(query)))

    async def write(
        self,
        change: Callable[[Transaction], T],
        owner: str | None = None,
        *,
        frees: bool = False,
        flushes: bool = True,
        short: bool = False,
    ) -> T:
        """Make one change, all of which is written or, if `change` raises an error, nothing.

        It is made, too, if the caller is cancelled meanwhile. One that `frees` room is made also on a full disk. Unless
        it `flushes`, a kill can't undo it, but a power failure may, until the next one that does. A `short` one gives
        little room back to the disk, so that others wait less for it.
        """
        rounds = (1 if short else _ROUNDS) if frees else 0
        writing = self._start(self._writer, owner, lambda: self._write(change, rounds, flushes=flushes))
        return await asyncio.shield(asyncio.wrap_future(writing))

    def read_now(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Do as `read`, and block meanwhile."""
        return self._start(self._readers, None, lambda: self._read(query)).result()

    def write_now(self, change: Callable[[Transaction], T], *, frees: bool = False) -> T:
        """Do as `write`, and block meanwhile."""
        return self._start(self._writer, None, lambda: self._write(change, _ROUNDS * frees)).result()

    def write_soon(self, change: Callable[[Transaction], object], *, frees: bool = False) -> None:
        """Do as `write`, without a wait for it or for the disk. A failure is logged; after `close` nothing happens."""

        def report(done: Future[object]) -> None:
            if (error := done.exception()) is not None:
                _log.warning("%s", error)

        with suppress(NotFoundError):
            writing = self._start(self._writer, None, lambda: self._write(change, _ROUNDS * frees, flushes=False))
            writing.add_done_callback(report)

    def close(self) -> None:
        """Finish what was begun, and close all connections. Idempotent."""
        for pool in (self._readers, self._writer):
            pool.shutdown()
        while self._connections:
            self._connections.pop().close()

    @property
    def num_bytes(self) -> tuple[int, int]:
        """The bytes of the file, and how many of them hold nothing. Blocks."""
        if self._path is None:
            return 0, 0
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = self.read_now(lambda db: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names])
        return pages * size, free * size

    def _start(self, threads: _FairThreads, owner: str | None, function: Callable[[], T]) -> Future[T]:
        check_process(self._process, "database")
        try:
            return threads.submit(owner, function)
        except RuntimeError:
            raise NotFoundError(f"{self._what} was closed meanwhile") from None

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        with self._storage_errors():
            connection = self._connect()
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                connection.execute("ROLLBACK")

    def _write(self, change: Callable[[Transaction], T], rounds: int, *, flushes: bool = True) -> T:
        with self._storage_errors():
            connection = self._connect()
            if self._lasting:
                connection.execute(f"PRAGMA synchronous = {'FULL' if flushes else 'NORMAL'}")
            try:
                result, transaction = self._transact(connection, change)
            except sqlite3.OperationalError as error:
                if not (rounds and _is_full(error)):
                    raise
                if self._reserve is not None:
                    self._reserve.drop()
                connection.execute("PRAGMA secure_delete = OFF")  # there is no room to overwrite what is deleted
                try:
                    result, transaction = self._transact(connection, change)
                finally:
                    connection.execute("PRAGMA secure_delete = ON")
        for action in transaction.afterwards:
            action()
        if rounds:
            with suppress(sqlite3.Error):  # space that is not given back now is used again
                while rounds and connection.execute("PRAGMA freelist_count").fetchone() != (0,):
                    connection.executescript(_GIVE_BACK)  # `execute` would free one page alone
                    rounds -= 1
                connection.execute("PRAGMA wal_checkpoint").fetchall()
            if self._reserve is not None:
                self._reserve.lay()
        return result

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self._what} can't be read or written: {error}") from error

    def _transact(self, connection: sqlite3.Connection, change: Callable[[Transaction], T]) -> tuple[T, Transaction]:
        transaction = Transaction(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = change(transaction)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite ends it by itself after some errors
                connection.execute("ROLLBACK")
            raise
        return result, transaction

    def _connect(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            with self._opening:
                if self._path is None:
                    path = self._find_path()
                    found = self._create(path)
                    self._path = path
                    if self._lasting:
                        self._reserve = Reserve(path)
                else:
                    found = self._open(self._path)
                self._local.connection = found
                self._connections.append(found)
        return found

    def _open(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=60.0)
        connection.execute("PRAGMA trusted_schema = OFF")  # the file may come from elsewhere
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._lasting else 'OFF'}")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        return connection

    def _create(self, path: Path) -> sqlite3.Connection:
        """Open the file, which is created if it is missing, and rescue what can be read of one that is damaged.

        Raises StateError for a file that a later version has written, or that can't be opened.
        """
        try:
            try:
                return self._prepare(path)
            except sqlite3.OperationalError:  # such as a full disk
                raise
            except sqlite3.DatabaseError as error:
                self.was_damaged = True
                damaged = path.with_name(f"{path.name}.damaged")
                _log.warning("%s is damaged: %s; what can be read is kept, and it is now %s", path, error, damaged)
                for ending in ("", "-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        path.with_name(path.name + ending).replace(damaged.with_name(damaged.name + ending))
                connection = self._prepare(path)
                _rescue(damaged, connection)
                return connection
        except sqlite3.Error as error:
            raise StateError(f"{path}: {error}; expected a file that can be written, or none") from error

    def _prepare(self, path: Path) -> sqlite3.Connection:
        connection = self._open(path)
        try:
            [version] = connection.execute("PRAGMA user_version").fetchone()
            if version > len(self._schema):
                raise StateError(
                    f"{path}: its format is {version}, of a later version; expected at most {len(self._schema)}"
                )
            if version == 0:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("PRAGMA journal_mode = WAL")
            if version < len(self._schema):
                script = "\n".join(self._schema[version:])
                connection.executescript(f"BEGIN; PRAGMA user_version = {len(self._schema)}; {script}\nCOMMIT;")
            [[found]] = connection.execute("PRAGMA quick_check(1)").fetchall()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        except BaseException:
            connection.close()
            raise
        return connection


def _rescue(damaged: Path, connection: sqlite3.Connection) -> None:
    """Copy each row that can be read from a damaged file, in one change."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    connection.execute("BEGIN")
    with closing(sqlite3.connect(damaged)) as source, suppress(sqlite3.Error):
        source.execute("PRAGMA trusted_schema = OFF")
        for table in tables:
            for order in ("ASC", "DESC"):  # the rows before the first that can't be read, and those after the last
                with suppress(sqlite3.Error):
                    rows: Any = source.execute(f"SELECT * FROM {table} NOT INDEXED ORDER BY rowid {order}")
                    while (row := rows.fetchone()) is not None:
                        marks = ", ".join("?" * len(row))
                        connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)
    connection.execute("COMMIT")


def _is_full(error: Exception) -> bool:
    """Return True if the disk has no room for a change. With a write-ahead log, SQLite may call that an I/O error."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
