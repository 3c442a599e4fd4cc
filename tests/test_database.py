"""A database of one writer and few readers: turns between owners, formats of its file, and full disks."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import EngineClosedError, NotFoundError, StateError, StorageError

FIRST = "CREATE TABLE things (name TEXT);  -- what there is"
SECOND = "ALTER TABLE things ADD COLUMN size INTEGER NOT NULL DEFAULT 3; CREATE TABLE others (name TEXT);"
LONG = "x" * 100_000


def open_in(folder: Path, *formats: str) -> Database:
    return Database("the shop", lambda: folder / "shop.sqlite", formats, lasting=True)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = open_in(tmp_path, FIRST)
    yield database
    database.close()


def add(transaction: Transaction, name: str) -> None:
    transaction.execute("INSERT INTO things (name) VALUES (?)", (name,))


def clear(transaction: Transaction) -> None:
    transaction.execute("DELETE FROM things")


def count(database: Database) -> int:
    [number] = database.read_now(lambda db: db.execute("SELECT count(*) FROM things").fetchone())
    return int(number)


async def test_owners_take_turns(database: Database) -> None:
    """However many calls of one owner wait, another one's next call is one of the next."""
    order, release = list[str](), threading.Event()

    def note(name: str, _: Transaction) -> None:
        release.wait()
        order.append(name)

    names = ("ann", "ann", "ann", "ann", "bob", "bob", "eve")
    writing = [asyncio.create_task(database.write(partial(note, name), name)) for name in names]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*writing)
    assert order == ["ann", "ann", "bob", "eve", "ann", "bob", "ann"]


async def test_a_call_whose_caller_has_left_is_not_made(database: Database) -> None:
    begun, release = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection) -> None:
        begun.set()
        release.wait()

    waiting = [asyncio.create_task(database.read(wait)) for _ in range(3)]
    left = asyncio.create_task(database.read(lambda _: pytest.fail("it was made")))
    await asyncio.to_thread(begun.wait)
    left.cancel()
    await asyncio.wait((left,))
    release.set()
    await asyncio.gather(*waiting)
    assert await database.read(lambda _: 1) == 1


def test_a_file_of_an_earlier_format_is_brought_up_to_date(tmp_path: Path) -> None:
    old = open_in(tmp_path, FIRST)
    old.write_now(partial(add, name="a"))
    old.close()
    new = open_in(tmp_path, FIRST, SECOND)
    assert new.read_now(lambda db: db.execute("SELECT * FROM things, (SELECT count(*) FROM others)").fetchall()) == [
        ("a", 3, 0)
    ]
    new.close()
    with pytest.raises(StateError, match="its format is 2, of a later version; expected at most 1"):
        open_in(tmp_path, FIRST).read_now(count_rows)


def count_rows(db: sqlite3.Connection) -> int:
    return len(db.execute("SELECT * FROM things").fetchall())


def test_a_full_disk_can_be_read_and_gets_its_room_back(database: Database, tmp_path: Path) -> None:
    for _ in range(20):
        database.write_now(partial(add, name=LONG))
    size = database.num_bytes[0]
    database.write_now(lambda transaction: transaction.execute(f"PRAGMA max_page_count = {size // 4096}").fetchall())
    with pytest.raises(StorageError, match="the shop can't be read or written: database or disk is full"):
        database.write_now(partial(add, name=LONG))
    assert count(database) == 20
    database.write_now(clear, frees=True)
    assert (count(database), database.num_bytes[1]) == (0, 0)
    assert database.num_bytes[0] < size / 10
    assert LONG[:1000].encode() not in (tmp_path / "shop.sqlite").read_bytes()


def test_a_deletion_gives_up_the_reserve_and_overwriting(database: Database, tmp_path: Path) -> None:
    reserve, seen = tmp_path / "shop.sqlite-reserve", list[tuple[bool, int]]()

    def fail_once(transaction: Transaction) -> None:
        [secure] = transaction.execute("PRAGMA secure_delete").fetchone()
        seen.append((reserve.exists(), secure))
        if len(seen) == 1:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
            raise error

    with pytest.raises(StorageError, match="disk I/O error"):
        database.write_now(fail_once)
    seen.clear()
    database.write_now(fail_once, frees=True)
    assert seen == [(True, 1), (False, 0)]
    seen.append((True, 1))
    database.write_now(fail_once)
    assert seen[-1] == (True, 1)


def test_a_database_in_memory_is_one_for_all_threads() -> None:
    database = Database("the shop", None, [FIRST], lasting=False)
    database.write_now(partial(add, name="a"))
    assert (count(database), database.num_bytes[0] > 0) == (1, True)
    database.close()
    with pytest.raises(NotFoundError, match="the shop was closed meanwhile"):
        count(database)


def test_a_change_that_nobody_waits_for_is_made_or_its_failure_logged(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.write_soon(lambda transaction: transaction.execute("DELETE FROM missing"))
    database.write_soon(partial(add, name="a"))
    database.write_now(partial(add, name="b"))
    assert count(database) == 2
    assert "the shop can't be read or written: no such table: missing" in caplog.text


def test_a_forked_process_is_told_to_open_its_own(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count(database) == 0
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 1)
        with pytest.raises(EngineClosedError, match="this database belongs to process"):
            count(database)
