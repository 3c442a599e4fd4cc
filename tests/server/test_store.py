"""The store room: bounds, operators, turns of tuning jobs, and processes that hang."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from rnn_engine.database import Database
from rnn_engine.errors import StorageError
from rnn_engine.loading.settings import LoadSettings
from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import STORE
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_server.jobs import tuning_process, tuning_runner
from rnn_engine_server.jobs.tuning_process import Checked, TuningProcess, encode_answer
from rnn_engine_server.jobs.tuning_runner import TuningRunner
from rnn_engine_server.store import events
from rnn_engine_server.store.events import Event
from rnn_engine_server.store.files import StoredFile
from rnn_engine_server.store.folder import Store
from rnn_engine_server.store.owners import Cursor
from rnn_engine_server.store.tunings import Hyperparameters, TuningJob
from tests.server.test_batches import LINES, URL, jsonl
from tests.server.test_batches import begin as begin_batch
from tests.server.test_batches import until as until_batch
from tests.server.test_fine_tuning import EXAMPLES, begin, job_server, messages, until
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve, Through
from tests.support.job_server import ANN, BOB, JobServer, greet_engine
from tests.support.tuning_process import FakeProcess, FakeProcesses

EVE = ApiKey.of("eve's key", "eve", Scope.MANAGE)
OPERATOR = ApiKey.of("operator's key", "operator")
ALL = {"owner": "*"}


@pytest.fixture
async def server(tmp_path: Path, through: Through) -> JobServer:
    server = await job_server(tmp_path, through, FakeEngine())
    server.keys = (ANN, BOB, OPERATOR)
    return server


@pytest.fixture
def processes(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    made = FakeProcesses(server.engine.state_files)
    monkeypatch.setattr(TuningProcess, "start", made.start)
    return made


@pytest.fixture
async def ann(server: JobServer, processes: FakeProcesses) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.run() as client:
        yield client


async def file_of(store: Store, owner: str, purpose: Any = "fine-tune", content: bytes = EXAMPLES) -> StoredFile:  # noqa: ANN401
    async with store.files.create(owner) as new:
        await new.write(content)
        new.describe("a.jsonl", purpose, None)
    assert new.stored is not None
    return new.stored


async def job_of(store: Store, owner: str) -> TuningJob:
    file = await file_of(store, owner)
    return await store.tunings.create(owner, "fake", file.id, method="state", asked=Hyperparameters(), seed=0)


async def test_a_temporary_folder_is_made_when_it_is_needed(serve: Serve) -> None:
    client = await serve(FakeEngine(), ServerSettings(loading=LoadSettings()))
    store = client.app[STORE]
    assert (await client.get("/metrics")).status == 200
    assert store._folder is None
    assert (await client.get("/v1/batches")).status == 200
    assert store._folder is not None


class TestOperators:
    async def test_an_operator_lists_cancels_and_deletes_what_others_made(
        self, ann: openai.AsyncOpenAI, server: JobServer
    ) -> None:
        operator, bob = (ann.with_options(api_key=f"{name}'s key") for name in ("operator", "bob"))
        server.engine.hold = 0
        batch = await begin_batch(ann, jsonl(LINES))
        job = await until(bob, await begin(bob))
        assert (await operator.batches.list()).data == []
        assert [each.id for each in (await operator.batches.list(extra_query=ALL)).data] == [batch.id]
        assert [each.id for each in (await operator.batches.list(extra_query={"owner": "bob"})).data] == []
        assert [each.id for each in (await operator.fine_tuning.jobs.list(extra_query=ALL)).data] == [job.id]
        assert len((await operator.files.list(extra_query=ALL)).data) == 3
        with pytest.raises(openai.PermissionDeniedError, match="owner: '\\*' is another API key"):
            await bob.files.list(extra_query=ALL)
        await server.engine.held.wait()
        assert (await operator.batches.cancel(batch.id)).status == "cancelling"
        await until_batch(ann, batch)
        for client, path in ((operator, f"/batches/{batch.id}"), (bob, f"/fine_tuning/jobs/{job.id}")):
            deleted: Any = await client.delete(path, cast_to=object)
            assert deleted["deleted"]
        await operator.files.delete(job.training_file)
        assert (await operator.batches.list(extra_query=ALL)).data == []
        with pytest.raises(openai.NotFoundError):
            await bob.fine_tuning.jobs.retrieve(job.id)

    async def test_an_operator_sees_and_deletes_conversations_and_responses(self, tmp_path: Path) -> None:
        """Also those of a key that is removed."""
        async with JobServer(tmp_path, keys=(EVE,)).run() as client:
            eve = client.with_options(api_key="eve's key")
            talk = await eve.conversations.create(items=[{"role": "user", "content": "Hi"}])
            answers = [await eve.responses.create(model="fake", input=text) for text in ("Hi", "Bye")]
        async with JobServer(tmp_path, keys=(ANN, OPERATOR)).run() as ann:
            operator = ann.with_options(api_key="operator's key")

            async def listed(path: str, **query: str) -> list[str]:
                found: Any = await operator.get(path, cast_to=object, options={"params": query})
                return [each["id"] for each in found["data"]]

            assert await listed("/conversations") == await listed("/responses") == []
            assert await listed("/conversations", owner="*") == await listed("/conversations", owner="eve") == [talk.id]
            assert await listed("/responses", owner="eve", limit="1") == [answers[1].id]
            for path in ("/conversations", "/responses"):
                with pytest.raises(openai.PermissionDeniedError, match="owner: 'eve' is another API key"):
                    await ann.get(path, cast_to=object, options={"params": {"owner": "eve"}})
            assert (await operator.responses.retrieve(answers[0].id)).output_text == answers[0].output_text
            assert len((await operator.responses.input_items.list(answers[0].id)).data) == 1
            assert len((await operator.conversations.items.list(talk.id)).data) == 1
            with pytest.raises(openai.NotFoundError):
                await ann.responses.retrieve(answers[0].id)
            await operator.conversations.delete(talk.id)
            for answer in answers:
                await operator.responses.delete(answer.id)
            assert await listed("/conversations", owner="*") == await listed("/responses", owner="*") == []

    async def test_what_removed_keys_have_left(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        file = await file_of(store, "eve")
        store.close()
        async with JobServer(tmp_path, keys=(ANN, OPERATOR)).run() as client:
            operator = client.with_options(api_key="operator's key")
            assert [each.id for each in (await operator.files.list(extra_query={"owner": "eve"})).data] == [file.id]
            await operator.files.delete(file.id)
            assert (await operator.files.list(extra_query=ALL)).data == []

    async def test_a_job_that_has_not_ended_is_not_deleted(
        self, ann: openai.AsyncOpenAI, processes: FakeProcesses
    ) -> None:
        processes.hold = 1
        job = await begin(ann)
        with pytest.raises(openai.BadRequestError, match="that has ended; cancel it first"):
            await ann.delete(f"/fine_tuning/jobs/{job.id}", cast_to=object)


class TestResults:
    async def test_results_have_the_bounds_of_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Answers of a batch that its key has no room for wait, and other keys keep their room."""
        limits = Limits(max_key_file_bytes=10_000, max_all_file_bytes=14_000)
        server = JobServer(tmp_path, greet_engine(), limits=limits)
        monkeypatch.setattr("rnn_engine_server.jobs.runner._RETRY_SECONDS", 0.05)
        async with server.run() as ann:
            other = await ann.files.create(file=b"x" * 5000, purpose="fine-tune")
            batch = await begin_batch(ann, jsonl(LINES))
            while "an answer can't be written yet" not in caplog.text:
                await asyncio.sleep(0)
            assert server.app_store.readings().file_bytes <= 10_000
            bob = ann.with_options(api_key="bob's key")
            await bob.files.create(file=b"x" * 4000, purpose="fine-tune")
            assert (await ann.batches.retrieve(batch.id)).status == "in_progress"
            await ann.files.delete(other.id)
            done = await until_batch(ann, batch)
            assert done.request_counts is not None
            assert done.request_counts.completed == 10

    async def test_results_have_room_from_the_beginning(self, tmp_path: Path) -> None:
        store = Store(tmp_path, Limits(max_key_files=3))
        file = await file_of(store, "ann", "batch")
        await store.batches.create("ann", URL, file.id, "24h")
        assert store.readings().num_files == 3
        with pytest.raises(Exception, match="max_key_files"):
            await file_of(store, "ann")
        store.close()
        again = Store(tmp_path)
        assert again.readings().num_files == 3
        again.close()


class TestTunings:
    async def test_owners_take_turns(
        self, ann: openai.AsyncOpenAI, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bob = ann.with_options(api_key="bob's key")
        processes.hold = 4
        with monkeypatch.context() as patch:
            patch.setattr(tuning_runner, "_TURN_SECONDS", 0.0)
            long = await begin(ann)
            await processes.held.wait()
            second = await begin(ann)
            short = await begin(bob)
            while "The job waits for its next turn" not in await messages(ann, long):
                pass
        processes.hold = None
        processes.release.set()
        assert (await until(bob, short)).status == "succeeded"
        assert (await until(ann, long)).trained_tokens == 80
        assert (await until(ann, second)).status == "succeeded"

    async def test_a_pause_at_the_end_of_a_turn_is_kept(
        self, ann: openai.AsyncOpenAI, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends, paused = asyncio.Event(), asyncio.Event()

        async def end(process: FakeProcess, _seconds: float) -> None:
            process.say("stop")
            if process.what == "tune":
                ends.set()
                await paused.wait()
            process.has_ended = True

        monkeypatch.setattr(FakeProcess, "end", end)
        monkeypatch.setattr(tuning_runner, "_TURN_SECONDS", 0.0)
        processes.hold = 4
        long = await begin(ann)
        await processes.held.wait()
        short = await begin(ann.with_options(api_key="bob's key"))
        await ends.wait()
        await ann.fine_tuning.jobs.pause(long.id)
        paused.set()
        processes.hold = None
        assert (await until(ann.with_options(api_key="bob's key"), short)).status == "succeeded"
        assert str((await ann.fine_tuning.jobs.retrieve(long.id)).status) == "paused"
        await ann.fine_tuning.jobs.resume(long.id)
        assert (await until(ann, long)).status == "succeeded"

    async def test_a_job_whose_watch_fails_is_paused(
        self, ann: openai.AsyncOpenAI, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fail(*_: object) -> None:
            raise RuntimeError("a fault")

        processes.hold = 4
        with monkeypatch.context() as patch:
            patch.setattr(tuning_runner, "_TURN_SECONDS", 0.0)
            patch.setattr(TuningRunner, "_end_turn", fail)
            job = await until(ann, await begin(ann), "paused")
            assert (await messages(ann, job))[-1].endswith("since it can't go on: a fault")
        processes.hold = None
        await ann.fine_tuning.jobs.resume(job.id)
        assert (await until(ann, job)).status == "succeeded"

    async def test_a_list_of_jobs_that_can_not_be_read_is_read_again(
        self, server: JobServer, ann: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unfinished, failures = server.app_store.tunings.unfinished, iter([StorageError("Input/output error")] * 3)

        async def fail_first() -> list[TuningJob]:
            if error := next(failures, None):
                raise error
            return await unfinished()

        monkeypatch.setattr(tuning_runner, "_RETRY_SECONDS", 0.0)
        monkeypatch.setattr(server.app_store.tunings, "unfinished", fail_first)
        assert (await until(ann, await begin(ann))).status == "succeeded"
        assert list(failures) == []

    async def test_all_that_a_job_writes_is_a_turn_of_its_owner(
        self, ann: openai.AsyncOpenAI, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, owners = Database.write, Counter[str | None]()

        async def note(database: Database, change: Any, owner: str | None = None, **options: bool) -> object:  # noqa: ANN401
            owners[owner] += not options.get("frees")  # as sweeps of what has expired do
            return await write(database, change, owner, **options)

        monkeypatch.setattr(Database, "write", note)
        await until(ann, await begin(ann))
        batch = await begin_batch(ann, jsonl(LINES[:2]))
        await until_batch(ann, batch)
        assert owners[None] == 0
        assert owners["ann"] > 20

    async def test_a_turn_ends_after_a_look_that_fails(
        self, ann: openai.AsyncOpenAI, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk does not answer at the end of a turn."""
        bob = ann.with_options(api_key="bob's key")
        end_turn, failures = TuningRunner._end_turn, iter([StorageError("Input/output error")] * 3)

        async def fail_first(runner: TuningRunner, job: TuningJob, run: Any) -> None:  # noqa: ANN401
            if error := next(failures, None):
                raise error
            await end_turn(runner, job, run)

        processes.hold = 4
        with monkeypatch.context() as patch:
            patch.setattr(tuning_runner, "_TURN_SECONDS", 0.0)
            patch.setattr(TuningRunner, "_end_turn", fail_first)
            long = await begin(ann)
            await processes.held.wait()
            short = await begin(bob)
            while "The job waits for its next turn" not in await messages(ann, long):
                pass
        assert list(failures) == []
        processes.hold = None
        processes.release.set()
        assert (await until(bob, short)).status == "succeeded"
        assert (await until(ann, long)).status == "succeeded"

    async def test_a_job_of_a_removed_key_fails(self, server: JobServer, processes: FakeProcesses) -> None:
        store = Store(server.folder)
        jobs = [await job_of(store, "eve") for _ in range(2)]
        await store.tunings.enter(jobs[0], "queued")
        store.close()
        async with server.run():
            for job in jobs:
                while not (job := await server.app_store.tunings.get(None, job.id)).has_ended:
                    await asyncio.sleep(0)
                assert job.error is not None
                assert (job.status, job.error.code) == ("failed", "key_removed")
        assert processes.started == []

    async def test_what_a_process_writes_when_it_is_stopped_does_not_stay(
        self, ann: openai.AsyncOpenAI, processes: FakeProcesses, server: JobServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def end(process: FakeProcess, _seconds: float) -> None:
            process.say("stop")
            if process.what == "tune":
                process.order.checkpoint.write_text("3")
            process.has_ended = True

        monkeypatch.setattr(FakeProcess, "end", end)
        processes.hold = 3
        job = await begin(ann)
        await processes.held.wait()
        await ann.fine_tuning.jobs.cancel(job.id)
        while not processes.started[-1].has_ended or list(server.folder.glob("blobs/ftjob-*")):
            await asyncio.sleep(0)

    async def test_a_process_that_does_not_end_is_killed(
        self, server: JobServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next job starts, and the server ends."""
        started = list[asyncio.subprocess.Process]()
        checked = encode_answer(Checked(20, 400, 300, [])).strip()

        async def start(what: str, _order: object) -> TuningProcess:
            code = f"print({checked!r})" if what == "check" else "import time; time.sleep(1000)"
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)
            started.extend([process] if what == "tune" else [])
            return TuningProcess(process)

        monkeypatch.setattr(TuningProcess, "start", start)
        monkeypatch.setattr(tuning_runner, "_STOP_SECONDS", 0.0)
        async with server.run() as ann:
            first = await until(ann, await begin(ann), "running")
            second = await begin(ann)
            await ann.fine_tuning.jobs.cancel(first.id)
            await until(ann, second, "running")
            assert started[0].returncode is not None
        assert [process.returncode is not None for process in started] == [True, True]

    async def test_a_process_that_hangs_is_killed_and_its_job_paused(
        self, server: JobServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody else's job waits, and nobody cancels it."""
        started = list[asyncio.subprocess.Process]()
        checked = encode_answer(Checked(20, 400, 300, [])).strip()

        async def start(what: str, _order: object) -> TuningProcess:
            hang = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
            code = f"print({checked!r})" if what == "check" else hang
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)
            if what == "tune":
                started.append(process)
                monkeypatch.setattr(tuning_process, "_LIFE_SECONDS", 0.02)
            return TuningProcess(process)

        monkeypatch.setattr(TuningProcess, "start", start)
        async with server.run() as ann:
            job = await until(ann, await begin(ann), "paused")
            reason = "the process that trains has ended 3 times before its end"
            assert (await messages(ann, job))[-1] == f"The job has been paused, since it can't go on: {reason}"
        assert [process.returncode for process in started] == [-signal.SIGKILL] * 3

    async def test_a_process_that_is_stopped_by_its_system_or_works_long(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """One that works without an answer is left alone, and one that is stopped is not."""
        monkeypatch.setattr(tuning_process, "_LIFE_SECONDS", 0.01)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "while True: pass", stdin=pipe, stdout=pipe
        )
        activity, seen = tuning_process._activity, list[object]()

        def look(pid: int) -> object:
            """Look once the process has done something, or been stopped."""
            while len(seen) < 5 and seen and activity(pid) == seen[-1]:
                pass
            seen.append(activity(pid))
            if len(seen) == 5:
                process.send_signal(signal.SIGSTOP)
            return seen[-1]

        monkeypatch.setattr(tuning_process, "_activity", look)
        assert [answer async for answer in TuningProcess(process).answers()] == []
        assert await process.wait() == -signal.SIGKILL
        assert len(seen) > 5
        assert "hangs" in caplog.text

    async def test_events_are_read_by_an_index(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        job, other = await job_of(store, "ann"), await job_of(store, "bob")
        rows = (
            (each.id, f"{number}", 0.0, "info", "words", "message") for number in range(1000) for each in (job, other)
        )
        insert = "INSERT INTO events (job, id, created, level, message, kind) VALUES (?, ?, ?, ?, ?, ?)"
        store._database.write_now(lambda transaction: transaction.executemany(insert, rows))
        page = await store.tunings.events(job, Cursor(2))
        assert [event.id for event in page.items] == ["999", "998"]
        page = await store.tunings.events(job, Cursor(2, "1", ascending=True))
        assert [event.id for event in page.items] == ["2", "3"]
        steps = list[str]()

        def explain(db: Any) -> list[Event]:  # noqa: ANN401
            db.set_trace_callback(steps.append)
            found = events.after(db, job.id, 1000, 5)
            db.set_trace_callback(None)
            plan = db.execute(f"EXPLAIN QUERY PLAN {steps[0]}").fetchall()
            assert [row[-1] for row in plan] == ["SEARCH events USING INDEX events_by_job (job=? AND number>?)"]
            return found

        assert len(await store._database.read(explain)) == 5
        store.close()
