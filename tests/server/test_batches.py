"""OpenAI's batches, with the official client: checks, results, cancelling, expiry, owners, and restarts."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types import Batch
from typing_extensions import Buffer

from rnn_engine.errors import InvalidRequestError, NotFoundError, OverloadedError, StorageError
from rnn_engine.requests import Client as EngineClient
from rnn_engine.requests import GenerateRequest
from rnn_engine_server.apis.common.owned import PageOf
from rnn_engine_server.apis.openai.batches import BATCHES, RUNNER, BatchObject
from rnn_engine_server.apis.openai.completions import ROUTES as COMPLETIONS
from rnn_engine_server.core.performing import InnerCalls
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.jobs.lines import (
    MOST_ERRORS,
    Journal,
    LineCounts,
    TokenUsage,
    check_lines,
    order_lines,
    read_lines,
)
from rnn_engine_server.store.batches import FOLLOWS, Batches, parse_window
from rnn_engine_server.store.batches import Batch as StoredBatch
from rnn_engine_server.store.folder import Store
from rnn_engine_server.store.owners import Cursor
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, check_shape, leave_during
from tests.support.job_server import JobServer

URL: Literal["/v1/completions"] = "/v1/completions"
[ROUTE] = COMPLETIONS
LIMITS = Limits()


def line(custom_id: object, body: object, url: str = URL, method: str = "POST") -> Body:
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def jsonl(lines: Sequence[object]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def echo(request: GenerateRequest) -> str:
    return f" {bytes(token - 1 for token in request.prompt).decode()}!"


LINES = [line(f"line {number}", {"prompt": f"{number % 3} {number}"}) for number in range(10)]
ANSWERS = {f"line {number}": f" {number % 3} {number}!" for number in range(10)}


@pytest.fixture
def server(tmp_path: Path) -> JobServer:
    return JobServer(tmp_path, FakeEngine(reply=echo))


@pytest.fixture
async def client(server: JobServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.run() as client:
        yield client


async def begin(client: openai.AsyncOpenAI, data: bytes, endpoint: str = URL, **fields: object) -> Batch:
    file = await client.files.create(file=("lines.jsonl", data), purpose="batch")
    wanted: Any = {"completion_window": "24h", **fields, "endpoint": endpoint}
    return await client.batches.create(input_file_id=file.id, **wanted)


async def until(client: openai.AsyncOpenAI, batch: Batch, *statuses: str) -> Batch:
    while batch.status not in (statuses or [status for status, others in FOLLOWS.items() if not others]):
        batch = await client.batches.retrieve(batch.id)
    return batch


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> list[Body]:
    assert file_id is not None
    content = (await client.files.content(file_id)).content
    return [json.loads(each) for each in content.splitlines()]


def texts(found: Sequence[Body]) -> dict[str, str]:
    """Return the texts of the answers to completions, after checking that no line was answered twice."""
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in found}


class TestOfficialClient:
    async def test_a_batch_is_run_and_read(self, client: openai.AsyncOpenAI, server: JobServer) -> None:
        begun = await begin(client, jsonl(LINES), metadata={"a": "b"})
        assert (begun.object, begun.status, begun.metadata) == ("batch", "validating", {"a": "b"})
        assert begun.expires_at == begun.created_at + 24 * 3600
        batch = await until(client, begun)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 10, "completed": 10, "failed": 0}
        assert (batch.error_file_id, batch.errors) == (None, None)
        assert batch.completed_at is not None
        assert batch.usage is not None
        assert batch.usage.to_dict() == {
            "input_tokens": 30,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 50,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 80,
        }
        found = await results(client, batch.output_file_id)
        assert texts(found) == ANSWERS
        assert {each["response"]["status_code"] for each in found} == {200}
        assert {each["error"] for each in found} == {None}
        assert len({each["id"] for each in found} | {each["response"]["request_id"] for each in found}) == 20
        file = await client.files.retrieve(str(batch.output_file_id))
        assert (file.purpose, file.filename, file.expires_at) == ("batch_output", f"{batch.id}_output.jsonl", None)
        assert {request.client for request in server.engine.requests} == {
            EngineClient("ann batches", 2.0, is_background=True)
        }
        assert (await client.files.list(purpose="batch_output")).data == [file]
        url = str(client.base_url).replace("/v1/", "/metrics")
        scrape = (await client.get(url, cast_to=httpx.Response)).text
        for text in (
            'batches{status="completed"} 1.0',
            'batch_lines_total{outcome="completed"} 10.0',
            'batch_tokens_total{kind="output"} 50.0',
            "job_files 2.0",
        ):
            assert f"\nrnn_engine_{text}\n" in scrape

    async def test_what_fails_is_in_a_file_of_its_own(self, client: openai.AsyncOpenAI) -> None:
        bad = line("bad", {"prompt": "x", "state": "nobody's"})
        begun = await begin(
            client, jsonl([*LINES, bad]), output_expires_after={"anchor": "created_at", "seconds": 7200}
        )
        batch = await until(client, begun)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 11, "completed": 10, "failed": 1}
        [failed] = await results(client, batch.error_file_id)
        assert (failed["custom_id"], failed["response"]["status_code"]) == ("bad", 404)
        assert "nobody's" in failed["response"]["body"]["error"]["message"]
        file = await client.files.retrieve(str(batch.error_file_id))
        assert file.expires_at == file.created_at + 7200

    @pytest.mark.parametrize(
        ("url", "body", "kind"),
        [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, "chat.completion"),
            ("/v1/embeddings", {"input": "Hi"}, "list"),
            ("/v1/responses", {"input": "Hi"}, "response"),
            ("/v1/choices", {"input": "a", "choices": ["b", "c"]}, None),
        ],
    )
    async def test_routes(self, client: openai.AsyncOpenAI, url: str, body: Body, kind: str | None) -> None:
        batch = await until(client, await begin(client, jsonl([line("1", body, url)]), url))
        [found] = await results(client, batch.output_file_id)
        assert found["response"]["status_code"] == 200
        assert found["response"]["body"].get("object") == kind or kind is None

    async def test_bad_lines_fail_the_batch_before_it_starts(
        self, client: openai.AsyncOpenAI, server: JobServer
    ) -> None:
        bad = [
            (b"{", "line"),
            (b"[]", "line"),
            (jsonl([line("1", {"prompt": "x"})]), "custom_id"),
            (jsonl([line(2, {"prompt": "x"})]), "custom_id"),
            (jsonl([line("3", {"prompt": "x"}, method="GET")]), "method"),
            (jsonl([line("4", {"prompt": "x"}, url="/v1/embeddings")]), "url"),
            (jsonl([line("5", "x")]), "body"),
            (jsonl([line("6", {"promt": "x"})]), "body.promt"),
            (jsonl([line("7", {"prompt": "x", "stream": True})]), "body.stream"),
            (jsonl([{**line("8", {"prompt": "x"}), "priority": 1}]), "priority"),
            (jsonl([line("9", {"prompt": "x", "seen": [0]})]).replace(b"[0]", b"[1e999]"), "body.seen.0"),
        ]
        data = jsonl([line("1", {"prompt": "x"})]) + b"\n" + b"\n".join(each.strip() for each, _ in bad)
        batch = await until(client, await begin(client, data))
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(each.line, each.param) for each in batch.errors.data] == [
            (number, param) for number, (_, param) in enumerate(bad, 3)
        ]
        assert server.engine.requests == []
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        await client.files.delete(batch.input_file_id)
        assert server.app_store.readings().num_files == 0  # it has given back the room for its results

    async def test_requests_that_make_no_batch(self, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="there is no file 'file-x'"):
            await client.batches.create(input_file_id="file-x", endpoint=URL, completion_window="24h")
        with pytest.raises(openai.BadRequestError, match="completion_window: 'soon' is not allowed"):
            await begin(client, b"", completion_window="soon")
        with pytest.raises(openai.BadRequestError, match="endpoint: '/v1/videos' is not allowed; expected '/v1/chat"):
            await begin(client, b"", "/v1/videos")
        file = await client.files.create(file=b"{}", purpose="fine-tune")
        with pytest.raises(openai.BadRequestError, match="a file with the purpose batch, not fine-tune"):
            await client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h")
        assert (await client.batches.list()).data == []

    async def test_pages_and_owners(self, client: openai.AsyncOpenAI) -> None:
        made = [await until(client, await begin(client, jsonl(LINES[:1]))) for _ in range(3)]
        assert [each.id async for each in client.batches.list(limit=2)] == [each.id for each in made[::-1]]
        bob = client.with_options(api_key="bob's key")
        assert (await bob.batches.list()).data == []
        for call in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError, match=r"there is no batch"):
                await call(made[0].id)
        with pytest.raises(openai.NotFoundError):
            await bob.files.content(str(made[0].output_file_id))

    async def test_the_shapes_of_the_answers(self, client: openai.AsyncOpenAI) -> None:
        batch = await begin(client, b"")
        raw: Any = await client.get(f"/batches/{batch.id}", cast_to=object)
        check_shape(BatchObject, raw)
        check_shape(PageOf[BatchObject], await client.get("/batches", cast_to=object))
        failed = await until(client, batch)
        assert failed.errors is not None
        check_shape(BatchObject, await client.get(f"/batches/{batch.id}", cast_to=object))


async def test_a_batch_is_cancelled_and_keeps_what_it_has(client: openai.AsyncOpenAI, server: JobServer) -> None:
    engine = server.engine
    first = await until(client, await begin(client, jsonl(LINES[:1])))
    engine.hold = 0
    running, waiting = [await begin(client, jsonl(LINES)) for _ in range(2)]
    await engine.held.wait()
    with pytest.raises(openai.BadRequestError, match="cancel the job first"):
        await client.files.delete(running.input_file_id)
    assert (await client.batches.cancel(waiting.id)).status == "cancelled"
    assert (await client.batches.cancel(running.id)).status == "cancelling"
    batch = await until(client, running)
    assert (batch.status, batch.output_file_id) == ("cancelled", None)
    assert engine.active == 0
    errors = await results(client, batch.error_file_id)
    codes = {each["custom_id"]: each["error"]["code"] for each in errors}
    assert codes == dict.fromkeys(ANSWERS, "batch_cancelled")
    assert (await client.batches.retrieve(waiting.id)).error_file_id is None  # its lines were not checked yet
    await client.files.delete(running.input_file_id)
    assert (await client.batches.cancel(first.id)).status == "completed"


async def test_a_client_that_leaves_before_the_answer_has_a_batch_that_runs(
    client: openai.AsyncOpenAI, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_during(begin(client, jsonl(LINES)), server.app[BATCHES], "create", monkeypatch)
    while not (found := (await client.batches.list()).data):
        await asyncio.sleep(0)
    assert texts(await results(client, (await until(client, found[0])).output_file_id)) == ANSWERS


async def test_a_client_that_leaves_before_the_answer_has_cancelled_its_batch(
    client: openai.AsyncOpenAI, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.engine.hold = 0
    batch = await begin(client, jsonl(LINES))
    await server.engine.held.wait()
    await leave_during(client.batches.cancel(batch.id), server.app[BATCHES], "enter", monkeypatch)
    assert (await until(client, batch)).status == "cancelled"


async def test_a_full_queue_delays_lines(
    client: openai.AsyncOpenAI, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.engine.refuse = OverloadedError("the queue is full", 0.01)
    naps, sleep = [], asyncio.sleep

    async def free(seconds: float) -> None:
        naps.append(seconds)
        server.engine.refuse = None
        await sleep(0)  # for loops of the server that sleep, too

    monkeypatch.setattr("rnn_engine_server.jobs.runner.asyncio.sleep", free)
    batch = await until(client, await begin(client, jsonl(LINES)))
    assert texts(await results(client, batch.output_file_id)) == ANSWERS
    assert naps


async def test_a_restart_goes_on_and_answers_no_line_twice(tmp_path: Path) -> None:
    """A server is stopped after some lines, and its folder copied before, as a kill leaves it. Both go on."""
    (tmp_path / "a").mkdir()
    engine = FakeEngine(reply=echo, num_slots=1)
    first = JobServer(tmp_path / "a", engine)
    async with first.run() as client:
        begun = await begin(client, jsonl(LINES[:4]))
        await until(client, begun)
        engine.reply = lambda request: echo(request) if len(engine.requests) < 10 else "x" * 100
        begun = await begin(client, jsonl(LINES))
        while (await client.batches.retrieve(begun.id)).request_counts.completed < 3:  # type: ignore[union-attr]
            engine.hold = 50  # of the long answers
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    for folder in ("a", "b"):
        second = JobServer(tmp_path / folder, FakeEngine(reply=echo))
        async with second.run() as client:
            batch = await until(client, await client.batches.retrieve(begun.id))
            assert batch.status == "completed"
            found = await results(client, batch.output_file_id)
            assert len(found) == 10
            assert texts(found).keys() == ANSWERS.keys()
            assert len(second.engine.requests) < 10
            assert not list((tmp_path / folder / "blobs").glob("batch_*"))


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ZeroDivisionError("a fault")])
async def test_a_batch_that_a_fault_stops_goes_on_after_a_pause_and_others_meanwhile(
    client: openai.AsyncOpenAI, server: JobServer, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real, stopped = Batches.journal, dict[str, int]()

    def journal(store: Batches, batch: StoredBatch) -> Any:  # noqa: ANN401
        stopped.setdefault(batch.id, 0)
        if batch.id == next(iter(stopped)) and stopped[batch.id] < 2:
            stopped[batch.id] += 1
            raise error
        return real(store, batch)

    monkeypatch.setattr("rnn_engine_server.jobs.runner._FIRST_PAUSE", 0.001)
    monkeypatch.setattr(Batches, "journal", journal)
    first, second = [await begin(client, jsonl(LINES)) for _ in range(2)]
    assert (await until(client, second)).status == "completed"
    batch = await until(client, first)
    assert texts(await results(client, batch.output_file_id)) == ANSWERS
    assert list(stopped.values()) == [2, 0]


async def test_answers_wait_for_room_on_the_disk(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, refused = Journal.add_answer, list[str]()

    def add_answer(journal: Journal, custom_id: str, *answer: Any) -> None:  # noqa: ANN401
        if len(journal.done) >= 3 and len(refused) < len(LINES):
            refused.append(custom_id)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(journal, custom_id, *answer)

    monkeypatch.setattr("rnn_engine_server.jobs.runner._RETRY_SECONDS", 0.001)
    monkeypatch.setattr(Journal, "add_answer", add_answer)
    batch = await until(client, await begin(client, jsonl(LINES)))
    assert len(set(refused)) > 1
    assert "an answer can't be written yet: No space left on device" in caplog.text
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert texts(await results(client, batch.output_file_id)) == ANSWERS


async def test_a_batch_with_a_line_that_is_cancelled_goes_on_and_does_not_expire(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cancelled = InnerCalls.ask, list[object]()

    async def ask(*arguments: Any, **fields: Any) -> Any:  # noqa: ANN401
        if not cancelled:
            cancelled.append(arguments)
            raise asyncio.CancelledError
        return await real(*arguments, **fields)

    monkeypatch.setattr("rnn_engine_server.jobs.runner._FIRST_PAUSE", 0.001)
    monkeypatch.setattr(InnerCalls, "ask", ask)
    batch = await until(client, await begin(client, jsonl(LINES)))
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert texts(await results(client, batch.output_file_id)) == ANSWERS


async def test_batches_that_can_not_be_looked_for_are_run_after_a_pause(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failed = Batches.unfinished, list[str | None]()

    async def unfinished(store: Batches, owner: str | None = None) -> list[StoredBatch]:
        if not failed:
            failed.append(owner)
            raise StorageError("the disk can't be read")
        return await real(store, owner)

    monkeypatch.setattr("rnn_engine_server.jobs.runner._FIRST_PAUSE", 0.001)
    monkeypatch.setattr(Batches, "unfinished", unfinished)
    assert (await until(client, await begin(client, jsonl(LINES)))).status == "completed"
    assert "the batches of 'ann' are looked for again in 0.001 s: the disk can't be read" in caplog.text


async def test_a_batch_whose_cancellation_fails_is_cancelled_later(
    client: openai.AsyncOpenAI, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.engine.hold = 0
    first, second = [await begin(client, jsonl(LINES[:1])) for _ in range(2)]
    await server.engine.held.wait()
    real, failed = Batches.finish, list[str]()

    async def finish(store: Batches, batch_id: str) -> StoredBatch:
        if batch_id == second.id and not failed:
            failed.append(batch_id)
            server.engine.hold = None
            server.engine.release.set()
            await until(client, first)
            while server.app[RUNNER]._tasks:  # until nothing looks for batches any more
                await asyncio.sleep(0)
            raise StorageError("the disk is full")
        return await real(store, batch_id)

    monkeypatch.setattr(Batches, "finish", finish)
    with pytest.raises(openai.APIStatusError, match="the disk is full"):
        await client.with_options(max_retries=0).batches.cancel(second.id)
    assert (await until(client, second)).status == "cancelled"


async def test_a_new_batch_does_not_wait_for_the_pause_of_another(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise ZeroDivisionError

    monkeypatch.setattr(Batches, "journal", fail)
    first = await until(client, await begin(client, jsonl(LINES)), "in_progress")
    await asyncio.to_thread(failed.wait)
    monkeypatch.undo()
    assert (await until(client, await begin(client, jsonl(LINES)))).status == "completed"
    assert (await client.batches.cancel(first.id)).status == "cancelled"


async def test_a_batch_whose_file_is_gone_fails(tmp_path: Path) -> None:
    engine = FakeEngine(reply=echo, hold=0)
    async with JobServer(tmp_path, engine).run() as client:
        begun = await begin(client, jsonl(LINES))
        await engine.held.wait()
    (tmp_path / "blobs" / begun.input_file_id).unlink()
    async with JobServer(tmp_path, FakeEngine(reply=echo)).run() as client:
        batch = await until(client, begun)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [each.code for each in batch.errors.data or ()] == ["file_missing"]


async def test_a_batch_whose_window_ends_expires(tmp_path: Path) -> None:
    engine = FakeEngine(reply=echo, hold=0)
    async with JobServer(tmp_path, engine, now=1000.0).run() as client:
        begun = await begin(client, jsonl(LINES), completion_window="1m")
        await engine.held.wait()
    async with JobServer(tmp_path, now=1060.0).run() as client:
        batch = await until(client, begun)
        assert (batch.status, batch.expired_at) == ("expired", 1060)
        errors = await results(client, batch.error_file_id)
        assert {each["custom_id"] for each in errors} == ANSWERS.keys()
        assert {each["error"]["code"] for each in errors} == {"batch_expired"}


async def test_a_batch_of_a_removed_key_fails(tmp_path: Path) -> None:
    store = Store(tmp_path)
    async with store.files.create("eve") as new:
        await new.write(jsonl(LINES))
        new.describe("lines.jsonl", "batch", None)
    assert new.stored is not None
    batch = await store.batches.create("eve", URL, new.stored.id, "24h")
    store.close()
    server = JobServer(tmp_path)
    async with server.run():
        while not (failed := await server.app[BATCHES].get("eve", batch.id)).has_ended:
            await asyncio.sleep(0)
    assert (failed.status, failed.errors[0].code) == ("failed", "key_removed")


class TestLines:
    def check(self, folder: Path, data: bytes, limits: Limits = LIMITS) -> tuple[int, list[str]]:
        path = folder / "lines"
        path.write_bytes(data)
        found = check_lines(path, ROUTE, limits, strict=False)
        return found.total, [f"{error.line}: {error.message}" for error in found.errors]

    def test_empty_lines(self, tmp_path: Path) -> None:
        total, errors = self.check(tmp_path, b"\n" * 1_000_000)
        assert (total, errors) == (0, ["None: the file of the batch has no line with a request"])
        assert self.check(tmp_path, b"\n \n" + jsonl(LINES)) == (10, [])

    def test_a_byte_order_mark(self, tmp_path: Path) -> None:
        assert self.check(tmp_path, b"\xef\xbb\xbf" + jsonl(LINES)) == (10, [])

    def test_a_line_that_is_too_long_is_not_read(self, tmp_path: Path) -> None:
        data = jsonl(LINES[:1]) + b"x" * 1_000_000 + b"\n" + jsonl(LINES[1:2])
        _, errors = self.check(tmp_path, data, Limits(max_body_bytes=1000))
        assert errors == ["2: line: 'more bytes' is not allowed; expected at most 1000 (max_body_bytes)"]

    def test_too_many_lines_and_errors(self, tmp_path: Path) -> None:
        _, errors = self.check(tmp_path, jsonl(LINES), Limits(max_batch_lines=9))
        assert errors == ["10: lines: 10 is not allowed; expected at most 9 lines (max_batch_lines)"]
        _, errors = self.check(tmp_path, b"{\n" * 1000)
        assert len(errors) == MOST_ERRORS

    def test_lines_that_begin_alike_are_run_one_after_another(self, tmp_path: Path) -> None:
        path = tmp_path / "lines"
        path.write_bytes(jsonl(LINES))
        places = order_lines(path, URL, LIMITS, {"line 4"})
        ids = [line.custom_id for line, _ in read_lines(path, places, URL)]
        assert ids == [f"line {number}" for number in (0, 3, 6, 9, 1, 7, 2, 5, 8)]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, TokenUsage()),
        ({"prompt_tokens": 5, "total_tokens": 5}, TokenUsage(5)),
        (
            {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
            TokenUsage(5, 2, 3),
        ),
        (
            {
                "input_tokens": 5,
                "input_tokens_details": {"cached_tokens": 2},
                "output_tokens": 3,
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            TokenUsage(5, 2, 3, 1),
        ),
    ],
)
def test_tokens_of_an_answer_under_every_name(usage: Body | None, expected: TokenUsage) -> None:
    assert TokenUsage.of(usage) == expected


class FullDisk(io.FileIO):
    """A file on a disk that has room for ten bytes more."""

    def write(self, data: Buffer) -> int:
        if len(memoryview(data)) < 100:
            raise OSError("full")
        return super().write(memoryview(data)[:10])


class TestJournal:
    @pytest.fixture
    def paths(self, tmp_path: Path) -> tuple[Path, Path]:
        return tmp_path / "outputs", tmp_path / "errors"

    def test_a_part_of_a_line_is_cut_off(self, paths: tuple[Path, Path]) -> None:
        journal = Journal(*paths, 0.0, LineCounts(), lambda num_bytes, *, always: None)
        for number in range(3):
            journal.add_answer(f"{number}", "id", 200, b'{"usage":{"prompt_tokens":2}}', {"prompt_tokens": 2})
        journal.add_error("3", "batch_expired", "message")
        journal.close()
        whole = paths[0].read_bytes()
        for end in range(len(whole) + 1):
            paths[0].write_bytes(whole[:end])
            journal = Journal(*paths, 0.0, LineCounts(), lambda num_bytes, *, always: None)
            count = whole[:end].count(b"\n")
            assert (journal.counts.completed, journal.counts.failed, journal.counts.not_run) == (count, 1, 1)
            assert journal.counts.usage == TokenUsage(2 * count)
            assert journal.done == {*map(str, range(count)), "3"}
            journal.close()
            assert paths[0].read_bytes() == b"".join(whole.splitlines(keepends=True)[:count])

    def test_a_full_disk_writes_nothing(self, paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        journal = Journal(*paths, 0.0, LineCounts(), lambda num_bytes, *, always: None)
        journal.add_error("1", "batch_expired", "message")
        size = paths[1].stat().st_size

        monkeypatch.setattr(journal, "_errors", FullDisk(paths[1], "a+"))
        with pytest.raises(OSError, match="full"):
            journal.add_error("2", "batch_expired", "message")
        assert paths[1].stat().st_size == size
        assert (journal.done, journal.counts.failed, journal.counts.not_run) == ({"1"}, 1, 1)
        journal.close()
        monkeypatch.undo()
        journal.close()


class TestStore:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = Store(tmp_path, Limits(max_key_batches=2))
        yield store
        store.close()

    async def file_of(self, store: Store, owner: str) -> str:
        async with store.files.create(owner) as new:
            new.describe("lines.jsonl", "batch", None)
        assert new.stored is not None
        return new.stored.id

    async def test_a_key_has_a_bound(self, store: Store, tmp_path: Path) -> None:
        file_id, batches = await self.file_of(store, "ann"), store.batches
        first, second = [await batches.create("ann", URL, file_id, "24h") for _ in range(2)]
        with pytest.raises(InvalidRequestError, match="max_key_batches"):
            await batches.create("ann", URL, file_id, "24h")
        await batches.enter(second, "failed")
        third = await batches.create("ann", URL, file_id, "24h")
        assert [batch.id for batch in await batches.unfinished("ann")] == [first.id, third.id]
        with pytest.raises(NotFoundError, match=f"there is no batch '{second.id}'"):
            await batches.enter(second, "cancelling")  # as after it was forgotten during a request to cancel it
        store.close()
        again = Store(tmp_path)
        assert (await again.batches.page("ann", Cursor(9))).items == [third, first]
        again.close()

    async def test_the_estimated_finish_follows_from_the_lines_since_the_start(self, tmp_path: Path) -> None:
        now = 1000.0
        store = Store(tmp_path, clock=lambda: now)
        batches = store.batches
        batch = await batches.create("ann", URL, await self.file_of(store, "ann"), "24h")
        batch = await batches.enter(batch, "in_progress", total=10)
        assert batches.estimated_finish(batch) is None
        for begun in (1000.0, 9000.0):  # the second time after a pause
            now = begun
            async with batches.journal(batch) as journal:
                done = len(journal.done)
                assert batches.estimated_finish(batch) is None
                now += 20.0
                for number in range(2):
                    journal.add_answer(f"{done + number}", "id", 200, b"{}")
                assert batches.estimated_finish(batch) == now + 10.0 * (10 - len(journal.done))
        assert batches.estimated_finish(batch) is None
        store.close()

    async def test_only_what_may_follow_follows(self, store: Store) -> None:
        batches = store.batches
        batch = await batches.create("ann", URL, await self.file_of(store, "ann"), "24h")
        assert await batches.enter(batch, "completed") == batch
        assert (await batches.enter(batch, "cancelling")).status == "cancelling"
        assert (await batches.enter(batch, "in_progress")).status == "cancelling"
        assert (await batches.finish(batch.id)).status == "cancelled"

    @pytest.mark.parametrize("adopted", [0, 1, 2])
    async def test_an_end_that_a_crash_interrupts_is_completed(
        self, store: Store, tmp_path: Path, adopted: int
    ) -> None:
        """`adopted` of the two files of results were made before the crash."""
        batches = store.batches
        batch = await batches.create("ann", URL, await self.file_of(store, "ann"), "24h")
        await batches.enter(batch, "in_progress", total=3)
        async with batches.journal(batch) as journal:
            for number in range(2):
                journal.add_answer(f"{number}", "id", 200, b"{}")
            journal.add_error("2", "batch_expired", "message")
        await batches.enter(batch, "finalizing", ends_as="completed")
        for name, file_id in (("output", batch.output_id), ("errors", batch.error_id))[:adopted]:
            store.blobs.adopt(file_id, f"{batch.id}.{name}")
        store.close()
        again = Store(tmp_path)
        ended = await again.batches.finish(batch.id)
        assert (ended.status, ended.completed, ended.failed) == ("completed", 2, 1)
        assert ended.result_ids == (batch.output_id, batch.error_id)
        contents = [await again.files.content("ann", each) for each in (batch.output_id, batch.error_id)]
        assert [path.read_bytes().count(b"\n") for path in contents] == [2, 1]
        readings, sizes = again.readings(), [path.stat().st_size for path in contents]
        assert (readings.num_files, readings.file_bytes) == (3, sum(sizes))
        again.close()


@pytest.mark.parametrize("text", ["", "24", "0h", "1.5h", "31d", "24 h", "h", "-1h", "9999999s"])
def test_windows_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="completion_window"):
        parse_window(text)


def test_windows() -> None:
    assert [parse_window(text) for text in ("1s", "90m", "24h", "30d")] == [1.0, 5400.0, 86400.0, 2592000.0]
