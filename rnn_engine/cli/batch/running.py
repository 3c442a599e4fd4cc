"""Run a batch to its end for `rnn-engine batch`, and keep what a run that is interrupted needs to go on."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from rnn_engine.cli.batch.local import LocalBatches, Reached
from rnn_engine.cli.options import command_to_resume
from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import output_file, read_record, skip_mark, write_record
from rnn_engine.llm.progress import progress_bar
from rnn_engine_server.store.folder import FOLDER_LOCK, delete_abandoned

_ENDED: Final = ("completed", "failed", "expired", "cancelled")
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


def run_batch(batches: LocalBatches, task: BatchTask) -> Reached:
    """Begin the batch or go on with it, wait for its end, and write its results."""
    batch_id = task.batch_id
    if batch_id is None:
        batch_id = batches.create(task.file, task.endpoint)
        write_record(task.record, {"batch_id": batch_id, "sha256": task.sha256})
    try:
        reached = _follow(batches, batch_id)
        if reached.output_id is not None:
            batches.download(reached.output_id, task.output)
        elif not reached.errors:
            with output_file(task.output):  # an empty one
                pass
        if reached.error_id is not None:
            batches.download(reached.error_id, task.errors)
    except KeyboardInterrupt:
        click.echo(f"\nstopped; go on with: {command_to_resume()}", err=True)
        raise
    return reached


def end_batch(task: BatchTask, reached: Reached) -> None:
    """Delete the folder of an ended batch and report. Raises ClickException if it could not run; may exit with 1."""
    shutil.rmtree(task.folder)
    if reached.errors:
        shown = [f"  {error}" for error in reached.errors[:_MOST_SHOWN]]
        if len(reached.errors) > len(shown):
            shown.append(f"  and {len(reached.errors) - len(shown)} more")
        raise click.ClickException("\n".join([f"{task.file} has requests that can't be run:", *shown]))
    said = f"{reached.completed:,} of {reached.total:,} requests are answered, in {task.output}"
    if reached.failed:
        said += f"; {reached.failed:,} failed, in {task.errors}"
    elif task.errors.is_file():
        said += f"; {task.errors} is of an earlier run"
    click.echo(said if reached.status == "completed" else f"the batch is {reached.status}: {said}")
    if reached.completed < reached.total:
        sys.exit(1)


def _follow(batches: LocalBatches, batch_id: str) -> Reached:
    """Show the progress of a batch until it has ended."""
    with progress_bar("checking the requests", with_time_left=True) as report:
        while (reached := batches.get(batch_id)).status not in _ENDED:
            if reached.total:
                report("running", reached.completed + reached.failed, reached.total)
            batches.wait()
    return reached


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
