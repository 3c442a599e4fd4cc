"""OpenAI's files, with the official client: uploads within bounds, owners, expiry, and what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
import gzip
import hashlib
import io
import os
import shutil
import socket
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import FormData

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError, StateError, StorageError
from rnn_engine_server.apis.common.owned import Deleted, PageOf
from rnn_engine_server.apis.openai.files import FileObject
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import STORE, make_app
from rnn_engine_server.core.settings import AuthSettings, Limits, ServerSettings
from rnn_engine_server.store.files import FILES, StoredFile
from rnn_engine_server.store.folder import FOLDER_LOCK, Store
from rnn_engine_server.store.owners import Cursor
from tests.support.fake_engine import FakeEngine
from tests.support.http import Client, Serve, Through, check_shape, error_of
from tests.support.loop_guard import LoopGuard
from tests.support.official import openai_client

PATH = "/v1/files"
KEYS = (
    ApiKey.of("ann's key", "ann", Scope.MANAGE),
    ApiKey.of("bob's key", "bob", Scope.MANAGE),
    ApiKey.of("eve's key", "eve", Scope.USE),
)
LINES = b'{"custom_id": "1"}\n' * 1000


@pytest.fixture
async def client(through: Through) -> AsyncIterator[openai.AsyncOpenAI]:
    app = make_app(await through(FakeEngine()), ServerSettings(auth=AuthSettings(KEYS)))
    async with openai_client(app, "ann's key") as client:
        yield client


class TestOfficialClient:
    async def test_a_file_is_uploaded_read_and_deleted(self, client: openai.AsyncOpenAI) -> None:
        made = await client.files.create(file=("lines.jsonl", LINES), purpose="batch")
        assert (made.object, made.filename, made.purpose, made.bytes) == ("file", "lines.jsonl", "batch", len(LINES))
        assert made.expires_at == made.created_at + 30 * 24 * 3600
        assert made.to_dict()["sha256"] == hashlib.sha256(LINES).hexdigest()
        assert await client.files.wait_for_processing(made.id) == made
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == LINES
        assert (await client.files.delete(made.id)).deleted
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError, match="there is no file"):
                await call(made.id)

    async def test_a_file_expires_when_the_client_says(self, client: openai.AsyncOpenAI) -> None:
        hour = await client.files.create(
            file=b"1", purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert hour.expires_at == hour.created_at + 3600
        assert (await client.files.create(file=b"2", purpose="fine-tune")).expires_at is None
        with pytest.raises(openai.BadRequestError, match=r"expires_after\.seconds: 60 .* at least 3600"):
            await client.files.create(file=b"3", purpose="batch", expires_after={"anchor": "created_at", "seconds": 60})

    async def test_pages(self, client: openai.AsyncOpenAI) -> None:
        made = [(await client.files.create(file=b"1", purpose="batch")).id for _ in range(3)]
        made.append((await client.files.create(file=b"1", purpose="fine-tune")).id)
        assert [each.id async for each in client.files.list(limit=2)] == made[::-1]  # the client reads all pages
        assert [each.id async for each in client.files.list(limit=1, order="asc")] == made
        assert [each.id async for each in client.files.list(purpose="batch", order="asc")] == made[:3]
        with pytest.raises(openai.BadRequestError, match="after: 'file-x' is not allowed; expected the id of an item"):
            await client.files.list(after="file-x")
        with pytest.raises(openai.BadRequestError, match="purpose: 'cats' is not allowed; expected one of batch, "):
            await client.files.list(purpose="cats")

    async def test_a_file_belongs_to_its_key(self, client: openai.AsyncOpenAI) -> None:
        made = await client.files.create(file=LINES, purpose="batch")
        bob = client.with_options(api_key="bob's key")
        assert (await bob.files.list()).data == []
        for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(made.id)
        with pytest.raises(openai.PermissionDeniedError, match="needs 'manage'"):
            await client.with_options(api_key="eve's key").files.create(file=LINES, purpose="batch")

    async def test_other_purposes_are_refused(self, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="purpose: 'vision' is not allowed; expected 'batch' or 'fine"):
            await client.files.create(file=LINES, purpose="vision")
        assert (await client.files.list()).data == []


async def send(client: Client, *fields: tuple[str, bytes | str, str | None]) -> int:
    form = FormData(default_to_multipart=True)
    for name, value, filename in fields:
        form.add_field(name, value, filename=filename)
    return (await client.post(PATH, data=form)).status


async def test_the_shapes_of_the_answers(serve: Serve) -> None:
    client = await serve(FakeEngine())
    form = FormData({"purpose": "fine-tune"})
    form.add_field("file", LINES, filename="a.jsonl")
    made = await (await client.post(PATH, data=form)).json()
    check_shape(FileObject, made)
    check_shape(PageOf[FileObject], await (await client.get(PATH)).json())
    check_shape(Deleted, await (await client.delete(f"{PATH}/{made['id']}")).json())


async def test_fields_come_in_any_order_and_bad_forms_leave_nothing(serve: Serve) -> None:
    client = await serve(FakeEngine())
    purpose, file = ("purpose", "batch", None), ("file", LINES, "a.jsonl")
    assert await send(client, file, purpose) == 200
    assert await send(client, purpose) == 400
    assert await send(client, file) == 400
    assert await send(client, file, purpose, file) == 400
    assert await send(client, file, purpose, ("expires_after", "soon", None)) == 400
    assert await send(client, purpose, file, ("file[x]", "y", None)) == 400
    assert await send(client, purpose, ("file[x]", "y", None), file) == 400
    assert await send(client, file, ("purpose", "x" * 5000, None)) == 400
    assert await send(client, file, *((f"field {number}", "x", None) for number in range(20))) == 400
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    cut = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nwithout an end'
    not_utf8 = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n\xff\r\n--b--\r\n'
    odd_names = [
        b"--b\r\nContent-Disposition: form-data; %b\r\n\r\nx\r\n--b--\r\n" % names
        for names in (b'name="pur\xffpose"', b'name="file"; filename="\xed\xa0\x80.jsonl"')
    ]
    sound = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
    unsound = [
        b"a preamble\r\n" + sound,
        b"\n" * 100_000 + sound,
        b"\r\n" * 100_000 + sound,
        b"x" * 1_000_000,
        b"--b" + b" " * 1_000_000,
        b"--b\r\n" + b"X: y\r\n" * 100_000,
        b"--b\r\nX" + b"y" * 1_000_000,
        b"--b\r\n\r\nno name\r\n--b--\r\n",
        sound.replace(b"--b--", b"--bc"),
        sound.removesuffix(b"--\r\n"),
        sound.removesuffix(b"--b--\r\n") * 100_000,
        b"--b--\r\n",
    ]
    for data in (b"", b"nothing", cut, not_utf8, *odd_names, *unsound, *map(gzip.compress, unsound)):
        headers["Content-Encoding"] = "gzip" if data.startswith(b"\x1f\x8b") else "identity"
        with LoopGuard(most_calls=2000, most_size=1 << 20) as guard:
            error = await error_of(await client.post(PATH, data=io.BytesIO(data), headers=headers), 400)
        assert guard.offences == {}
        assert error["param"] in ("body", "file", "purpose", "text"), error
    error = await error_of(await client.post(PATH, json={"purpose": "batch"}), 400)
    assert "content-type: 'application/json' is not allowed" in error["message"]
    store = client.app[STORE]
    assert len(await owned(store, "")) == len(contents(store)) == 1


async def test_an_upload_beyond_a_bound_is_refused(serve: Serve) -> None:
    limits = Limits(max_file_bytes=100_000, max_key_files=2, max_key_file_bytes=150_000)
    client = await serve(FakeEngine(), ServerSettings(limits=limits))
    purpose = ("purpose", "batch", None)
    assert await send(client, purpose, ("file", b"x" * 100_000, "a")) == 200
    assert await send(client, purpose, ("file", b"x" * 100_001, "a")) == 413  # the length alone does not tell
    assert await send(client, purpose, ("file", b"x" * 1_000_000, "a")) == 413
    assert await send(client, purpose, ("file", b"x" * 50_001, "a")) == 400
    assert await send(client, purpose, ("file", b"x" * 50_000, "a")) == 200
    form = FormData({"purpose": "batch"})
    form.add_field("file", b"", filename="a")
    error = await error_of(await client.post(PATH, data=form), 400)
    assert "at most 2 files of an API key (max_key_files)" in error["message"]
    assert len(contents(client.app[STORE])) == 2


async def test_a_client_that_leaves_amid_an_upload_leaves_nothing(serve: Serve) -> None:
    client = await serve(FakeEngine())
    store = client.app[STORE]
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * 100_000
    _, writer = await asyncio.open_connection(client.host, client.port, family=socket.AF_INET)
    writer.write(head + b"Content-Length: 1000000\r\n\r\n" + part)
    while not contents(store):
        await asyncio.sleep(0)
    writer.transport.abort()
    while contents(store):
        await asyncio.sleep(0)
    assert await owned(store, "") == []


@pytest.mark.parametrize("boundary", ['"a b"', "b; charset=utf-8", "-" * 70])
async def test_a_form_by_hand(serve: Serve, boundary: str) -> None:
    client = await serve(FakeEngine())
    mark = b"--" + boundary.strip('"').removesuffix("; charset=utf-8").encode()
    content = bytes(range(256)) * 2000 + b"\r\n--\r\n" + mark[:-1] + b"\r\n"
    form = (
        mark + b" \t\r\ncontent-disposition: form-data; name=purpose\r\n\r\nbatch\r\n" + mark + b"\r\n"
        b"Content-Disposition: form-data; name=file; filename*=UTF-8''%C3%A9.jsonl\r\nContent-Type: a/b\r\n\r\n"
    )
    form += content + b"\r\n" + mark + b"--\r\nan epilogue"
    for data, coding in ((form, "identity"), (gzip.compress(form), "gzip")):
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Encoding": coding}
        made = await (await client.post(PATH, data=data, headers=headers)).json()
        assert (made["filename"], made["bytes"]) == ("é.jsonl", len(content))
        assert await (await client.get(f"{PATH}/{made['id']}/content")).read() == content


async def put(store: Store, owner: str, content: bytes = b"content", lifetime: float | None = None) -> StoredFile:
    async with store.files.create(owner) as new:
        await new.write(content)
        new.describe("a.jsonl", "batch", lifetime)
    assert new.stored is not None
    return new.stored


async def owned(store: Store, owner: str) -> list[StoredFile]:
    return (await store.files.page(owner, Cursor(100, ascending=True))).items


def contents(store: Store) -> list[str]:
    """Return the names of the blobs of a store."""
    return sorted(path.name for path in (store.folder / "blobs").glob("*"))


class TestStore:
    @pytest.fixture
    def now(self) -> list[float]:
        return [1000.0]

    @pytest.fixture
    def store(self, tmp_path: Path, now: list[float]) -> Iterator[Store]:
        store = Store(tmp_path, Limits(max_all_file_bytes=100), lambda: now[0])
        yield store
        store.close()

    async def test_files_outlive_the_process(self, store: Store, tmp_path: Path) -> None:
        stored = [await put(store, owner) for owner in ("ann", "bob", "ann")]
        with pytest.raises(StateError, match="another process uses it"):
            Store(tmp_path)
        store.close()
        again = Store(tmp_path)
        assert await owned(again, "ann") == [stored[0], stored[2]]
        async with again.files.open_content(stored[1]) as file:
            assert file.read() == b"content"
        assert (again.readings().num_files, again.readings().file_bytes) == (3, 21)
        again.close()

    async def test_blobs_and_records_that_a_crash_left_alone(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        whole, no_record, no_content = [await put(store, "ann") for _ in range(3)]
        store.close()
        (tmp_path / "blobs" / no_content.id).unlink()
        (tmp_path / "blobs" / "file-123.partial").write_bytes(b"cont")
        (tmp_path / "notes.txt").write_text("the user's own")
        with sqlite3.connect(tmp_path / "jobs.sqlite") as connection:
            connection.execute("DELETE FROM files WHERE id = ?", (no_record.id,))
        again = Store(tmp_path)
        assert await owned(again, "ann") == [whole, no_content]
        assert f"the content of the file {no_content.id} ('a.jsonl') is gone" in caplog.text
        with pytest.raises(NotFoundError, match="is gone"):
            await again.files.content("ann", no_content.id)
        assert contents(again) == [whole.id]
        assert (tmp_path / "notes.txt").exists()
        again.close()

    async def test_a_damaged_record_is_left_out(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        stored, whole = [await put(store, "ann") for _ in range(2)]
        with sqlite3.connect(tmp_path / "jobs.sqlite") as connection:
            connection.execute("UPDATE files SET owner = 'bob' WHERE id = ?", (stored.id,))
        assert await owned(store, "bob") == []
        assert await owned(store, "ann") == [whole]
        with pytest.raises(NotFoundError):
            await store.files.get("bob", stored.id)
        assert f"the record of file {stored.id} is left out, since it is damaged" in caplog.text

    async def test_what_can_be_read_of_a_damaged_database_is_kept(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        stored = [await put(store, "ann", b"", 1000.0 + number) for number in range(20)]
        for _ in range(12):
            await store.files.delete("ann", stored.pop(5).id)
        store.close()
        path = tmp_path / "jobs.sqlite"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            [[root]] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'files_by_owner'").fetchall()
        data = bytearray(path.read_bytes())
        data[(root - 1) * 4096 : root * 4096] = os.urandom(4096)
        path.write_bytes(data)
        again = Store(tmp_path, clock=lambda: 1000.0)
        assert "jobs.sqlite is damaged" in caplog.text
        assert (tmp_path / "jobs.sqlite.damaged").read_bytes() == data
        assert await owned(again, "ann") == stored
        again.close()

    async def test_blobs_of_a_lost_database_are_moved_and_not_deleted(self, store: Store, tmp_path: Path) -> None:
        stored = await put(store, "ann")
        store.close()
        (tmp_path / "jobs.sqlite").write_bytes(b"no database" * 1000)
        again = Store(tmp_path)
        assert await owned(again, "ann") == []
        assert (tmp_path / "blobs.damaged" / stored.id).read_bytes() == b"content"
        again.close()

    async def test_expired_files_are_deleted(self, store: Store, now: list[float]) -> None:
        brief, lasting = await put(store, "ann", lifetime=60.0), await put(store, "ann")
        now[0] += 59.0
        assert await store.files.get("ann", brief.id) == brief
        now[0] += 1.0
        with pytest.raises(NotFoundError, match=f"there is no file '{brief.id}'"):
            await store.files.get("ann", brief.id)
        with pytest.raises(NotFoundError, match="is gone"):
            async with store.files.open_content(brief):
                pass
        assert await owned(store, "ann") == [lasting]
        assert contents(store) == [lasting.id]

    async def test_unfinished_files_count(self, store: Store) -> None:
        async with store.files.create("ann") as one:
            await one.write(b"x" * 60)
            with pytest.raises(StorageError, match="max_all_file_bytes"):
                await put(store, "bob", b"x" * 41)
            one.describe("a.jsonl", "batch", 60.0)
        await store.files.delete("ann", (await owned(store, "ann"))[0].id)
        assert (await put(store, "ann", b"x" * 100)).num_bytes == 100

    async def test_a_key_has_bounds_of_its_own(self, tmp_path: Path) -> None:
        store = Store(tmp_path, Limits(max_key_files=1, max_key_file_bytes=10))
        with pytest.raises(InvalidRequestError, match="11 bytes"):
            await put(store, "ann", b"x" * 11)
        await put(store, "ann")
        with pytest.raises(InvalidRequestError, match="max_key_files"):
            await put(store, "ann")
        await put(store, "bob")
        store.close()

    async def test_a_full_disk_leaves_nothing(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_arguments: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("rnn_engine_server.store.files.NewFile.write_now", fail)
            with pytest.raises(StorageError, match="No space left"):
                await put(store, "ann")
        with monkeypatch.context() as patched:
            patched.setattr(FILES, "put", fail_as_sqlite)
            with pytest.raises(StorageError, match="disk is full"):
                await put(store, "ann")
        assert contents(store) == []
        assert await owned(store, "ann") == []
        assert store.readings().num_files == 0

    async def test_a_client_that_leaves_while_its_file_is_recorded_leaves_room_and_record_in_agreement(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record, begun, goes_on = FILES.put, threading.Event(), threading.Event()

        def wait(transaction: Transaction, file: StoredFile) -> None:
            begun.set()
            goes_on.wait()
            record(transaction, file)

        monkeypatch.setattr(FILES, "put", wait)
        putting = asyncio.create_task(put(store, "ann"))
        await asyncio.to_thread(begun.wait)
        putting.cancel()
        await asyncio.wait((putting,))
        goes_on.set()
        while not (found := await owned(store, "ann")):
            await asyncio.sleep(0)
        [kept], readings = found, store.readings()
        assert (readings.num_files, readings.file_bytes) == (1, kept.num_bytes)
        await store.files.delete("ann", kept.id)
        readings = store.readings()
        assert (readings.num_files, readings.file_bytes) == (0, 0)

    async def test_a_client_that_leaves_while_its_file_is_flushed_leaves_nothing(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flush, begun, goes_on = os.fsync, threading.Event(), threading.Event()

        def wait(descriptor: int) -> None:
            begun.set()
            goes_on.wait()
            flush(descriptor)

        monkeypatch.setattr(os, "fsync", wait)
        putting = asyncio.create_task(put(store, "ann"))
        await asyncio.to_thread(begun.wait)
        putting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        goes_on.set()
        await asyncio.wait((putting,))
        readings = store.readings()
        assert (putting.cancelled(), contents(store)) == (True, [])
        assert (readings.num_files, readings.file_bytes) == (0, 0)

    async def test_what_has_expired_is_deleted_after_a_deletion_that_failed(
        self, store: Store, now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        stored, transact = await put(store, "ann", lifetime=60.0), Database._transact
        now[0] += 60.0

        def fail_at_the_end(database: Database, connection: sqlite3.Connection, change: Any) -> Any:  # noqa: ANN401
            def change_and_fail(transaction: Transaction) -> None:
                change(transaction)
                fail_as_sqlite()

            return transact(database, connection, change_and_fail)

        with monkeypatch.context() as patched:
            patched.setattr(Database, "_transact", fail_at_the_end)
            assert await owned(store, "ann") == [stored]
        assert "what has expired can't be deleted" in caplog.text
        assert await owned(store, "ann") == []

    async def test_a_deletion_needs_no_room(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What keeps room on a full disk is given up for a deletion, and for nothing else."""
        stored = await put(store, "ann")
        reserve, delete = tmp_path / "jobs.sqlite-reserve", FILES.delete

        def fail_unless_there_is_room(transaction: Transaction, file: StoredFile) -> None:
            if reserve.exists():
                fail_as_sqlite()
            delete(transaction, file)

        assert reserve.stat().st_size > 100_000
        monkeypatch.setattr(FILES, "put", fail_as_sqlite)
        with pytest.raises(StorageError, match="disk is full"):
            await put(store, "ann")
        assert reserve.exists()
        monkeypatch.setattr(FILES, "delete", fail_unless_there_is_room)
        await store.files.delete("ann", stored.id)
        assert (await owned(store, "ann"), contents(store)) == ([], [])
        assert reserve.exists()  # again, since there is room

    async def test_a_temporary_file_is_deleted_also_after_a_kill(self, store: Store, tmp_path: Path) -> None:
        with store.blobs.temporary("upload") as path:
            path.write_bytes(LINES)
            killed = tmp_path.with_name("killed")
            shutil.copytree(tmp_path, killed)
        assert contents(store) == []
        assert (killed / "blobs" / path.parent.name).exists()
        again = Store(killed)
        assert contents(again) == []
        again.close()

    async def test_temporary_folders_of_killed_processes_are_deleted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        used = Store()
        killed = tmp_path / f"{used.folder.name}-killed"
        killed.mkdir()
        (killed / FOLDER_LOCK).touch()
        (killed / "file-1.data").write_bytes(LINES)
        other = Store()
        folders = sorted(store.folder for store in (used, other))
        assert sorted(tmp_path.iterdir()) == folders
        for store in (used, other):
            store.close()
        assert list(tmp_path.iterdir()) == []

    async def test_a_temporary_folder_ends_with_the_store(self) -> None:
        store = Store()
        await put(store, "")
        assert store.folder.exists()
        assert not store.persistent
        store.close()
        assert not store.folder.exists()


def fail_as_sqlite(*_arguments: object) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error
