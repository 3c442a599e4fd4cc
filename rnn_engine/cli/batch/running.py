"""Run a batch to its end for `rnn-engine batch`, and keep what a run that is interrupted needs to go on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

import click

from rnn_engine.cli.options import command_to_resume
from rnn_engine.cli.session import EngineChoice, Session, engine_session, with_demo_state
from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import output_file, read_record, skip_mark, write_record
from rnn_engine.llm.progress import progress_bar
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_server.auth.keys import ANYONE
from rnn_engine_server.core.app import BATCHES, RUNNER, make_app, serving
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_server.jobs.runner import BatchRunner
from rnn_engine_server.store.batches import Batch, Batches, Endpoint
from rnn_engine_server.store.folder import FOLDER_LOCK, delete_abandoned
from rnn_engine_states.cache.config import CacheConfig

# The batches of the command line: those of the server, in a store in a folder of their own.

_WINDOW: Final = "30d"  # the longest
_PIECE_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 0.2
_UNBOUNDED: Final = 1 << 62
_LIMITS: Final = Limits(
    max_file_bytes=_UNBOUNDED, max_key_file_bytes=_UNBOUNDED, max_all_file_bytes=_UNBOUNDED, max_batch_lines=_UNBOUNDED
)


@contextmanager
def local_batches(
    model: Path, loading: LoadSettings, states: StateSettings, slots: int, folder: Path
) -> Iterator[LocalBatches]:
    """Load a model, and yield its batches, kept in `folder`. Raises StateError if another process uses that."""
    choice = EngineChoice(model, loading, slots, cache=CacheConfig(), states=with_demo_state(model, states))
    settings = ServerSettings(job_folder=folder, any_model=True, limits=_LIMITS)
    with engine_session(choice) as session:
        app, running = make_app(session.engine, settings), AsyncExitStack()
        session.run(running.enter_async_context(serving(app, (), settings)))
        try:
            yield LocalBatches(session, app[BATCHES], app[RUNNER])
        finally:
            session.run(running.aclose())


class LocalBatches:
    """The batches of an engine in this process, with the store and the runner of a server's."""

    def __init__(self, session: Session, store: Batches, runner: BatchRunner) -> None:
        self._session = session
        self._store = store
        self._runner = runner

    def create(self, file: Path, endpoint: str) -> str:
        """Begin a batch of the requests in `file`, and return its id."""
        if endpoint not in get_args(Endpoint):
            raise InvalidRequestError("url", endpoint, f"one of {', '.join(get_args(Endpoint))}")
        return self._session.run(self._create(file, endpoint)).id

    async def _create(self, file: Path, endpoint: str) -> Batch:
        async with self._store.files.create(ANYONE.name) as new:
            with file.open("rb") as content:
                while piece := content.read(_PIECE_BYTES):
                    await new.write(piece)
            new.describe(file.name, "batch", None)
        assert new.stored is not None
        stored_id = new.stored.id
        return await self._runner.begin(lambda: self._store.create(ANYONE.name, endpoint, stored_id, _WINDOW))

    def get(self, batch_id: str) -> Batch:
        return self._store.shown(self._session.run(self._store.get(ANYONE.name, batch_id)))

    def wait(self) -> None:
        """Wait until it is worth looking again how far a batch has come."""
        self._session.run(asyncio.sleep(_LOOK_SECONDS))

    def download(self, file_id: str, to: Path) -> None:
        """Write a file of results to `to`, either completely or not at all."""
        path = self._session.run(self._store.files.content(ANYONE.name, file_id))
        with path.open("rb") as content, output_file(to) as copy:
            shutil.copyfileobj(content, copy)


_MOST_SHOWN: Final = 20  # errors of a batch that can't be run


@dataclass(frozen=True, slots=True)
class BatchTask:
    """A batch as its command line describes it, and the id that it has if it goes on."""

    file: Path
    endpoint: str
    sha256: str  # of the file
    output: Path
    errors: Path
    batch_id: str | None

    @classmethod
    def open(cls, file: Path, output: Path, errors: Path, *, resume: bool) -> BatchTask:
        """Read what `file` is, and with `resume` the folder of a batch that was interrupted.

        A folder in which no batch has begun yet, since the process was killed, is deleted.
        Raises InvalidRequestError if the file has no requests, OSError if it can't be read, and UsageError if the
        folder does not fit.
        """
        task = cls(file, _read_endpoint(file), _digest(file), output, errors, None)
        if not task.folder.exists():
            if resume:
                raise click.UsageError(f"--resume goes on from {task.folder}, which does not exist")
            return task
        begun = read_record(task.record)
        if begun is None:
            task._delete_unbegun()
            return task
        if not resume:
            found = "that of a batch that has not ended"
            raise click.UsageError(f"{task.folder} is {found}; go on with --resume, or delete it")
        if begun["sha256"] != task.sha256:
            raise click.UsageError(f"{file} is not the file of the batch in {task.folder}, or has changed since")
        return replace(task, batch_id=begun["batch_id"])

    @property
    def folder(self) -> Path:
        return self.output.with_name(f"{self.output.name}.batch")

    @property
    def record(self) -> Path:
        return self.folder / "run.json"

    def forget_unless_begun(self) -> None:
        """Delete the folder if no batch has begun in it, unless another process uses it."""
        if self.folder.exists() and not self.record.exists():
            delete_abandoned(self.folder)

    def _delete_unbegun(self) -> None:
        """Delete the folder, which has no record of a batch. Raises UsageError unless it is a killed process's."""
        if self.record.exists() or not (self.folder / FOLDER_LOCK).exists():
            raise click.UsageError(f"{self.folder} has no batch to go on with; delete it, and leave --resume out")
        if not delete_abandoned(self.folder):
            raise click.UsageError(f"{self.folder} is in use by another process, which has just begun")


def run_batch(batches: LocalBatches, task: BatchTask) -> Batch:
    """Begin the batch or go on with it, wait for its end, and write its results."""
    batch_id = task.batch_id
    if batch_id is None:
        batch_id = batches.create(task.file, task.endpoint)
        write_record(task.record, {"batch_id": batch_id, "sha256": task.sha256})
    try:
        batch = _follow(batches, batch_id)
        output_id, error_id = batch.result_ids
        if output_id is not None:
            batches.download(output_id, task.output)
        elif not batch.errors:
            with output_file(task.output):  # an empty one
                pass
        if error_id is not None:
            batches.download(error_id, task.errors)
    except KeyboardInterrupt:
        click.echo(f"\nstopped; go on with: {command_to_resume()}", err=True)
        raise
    return batch


def end_batch(task: BatchTask, batch: Batch) -> None:
    """Delete the folder of an ended batch and report. Raises ClickException if it could not run; may exit with 1."""
    shutil.rmtree(task.folder)
    if batch.errors:
        shown = [
            f"  {error.message}" if error.line is None else f"  line {error.line}: {error.message}"
            for error in batch.errors[:_MOST_SHOWN]
        ]
        if len(batch.errors) > len(shown):
            shown.append(f"  and {len(batch.errors) - len(shown)} more")
        raise click.ClickException("\n".join([f"{task.file} has requests that can't be run:", *shown]))
    said = f"{batch.completed:,} of {batch.total:,} requests are answered, in {task.output}"
    if batch.failed:
        said += f"; {batch.failed:,} failed, in {task.errors}"
    elif task.errors.is_file():
        said += f"; {task.errors} is of an earlier run"
    click.echo(said if batch.status == "completed" else f"the batch is {batch.status}: {said}")
    if batch.completed < batch.total:
        sys.exit(1)


def _follow(batches: LocalBatches, batch_id: str) -> Batch:
    """Show the progress of a batch until it has ended."""
    with progress_bar("checking the requests", with_time_left=True) as report:
        while not (batch := batches.get(batch_id)).has_ended:
            if batch.total:
                report("running", batch.completed + batch.failed, batch.total)
            batches.wait()
    return batch


def _read_endpoint(file: Path) -> str:
    """Return the URL of the first request of a file, which is that of all others, too."""
    with file.open("rb") as lines:
        try:
            skip_mark(lines)
        except UnicodeDecodeError as error:
            raise InvalidRequestError("FILE", str(file), "JSON lines in UTF-8", f"{file}: {error.reason}") from None
        first = next((line for line in lines if not line.isspace()), b"")
    try:
        request = json.loads(first)
    except (ValueError, RecursionError):
        request = None
    url = request.get("url") if isinstance(request, dict) else None
    if not isinstance(url, str):
        allowed = "an object with custom_id, method, url and body"
        shown = first[:80].decode(errors="replace").strip()
        message = f"{file}: the first line is {shown!r}; expected {allowed}"
        raise InvalidRequestError("FILE", shown, allowed, message)
    return url


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
