"""The records of jobs of one kind, kept in the folder of the files that the jobs read and write."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine.files import TEMPORARY_SUFFIX, delete_file, write_record
from rnn_engine_server.core.bodies import storage_errors
from rnn_engine_server.core.settings import BOUNDS, Limits
from rnn_engine_server.jobs.files import FileStore, read_known

_FAILURE = "the job can't be written to the folder of jobs"


class Job(Protocol):
    """What all jobs have. A job never changes: a change makes another with the same id."""

    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> str:
        """The name of an API key; empty without keys."""
        ...

    @property
    def created(self) -> float: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the files that the job reads. They are held until it has ended."""
        ...


J = TypeVar("J", bound=Job)


class JobRecords(Generic[J]):
    """The jobs of all owners. Thread-safe; methods block for the disk.

    In a subclass, the lock must be held for methods that begin with an underscore.
    """

    def __init__(self, files: FileStore, limits: Limits, kind: TypeAdapter[J], prefix: str, limit: str) -> None:
        """Read the jobs in the folder of `files`, whose ids begin with `prefix`. A damaged record is left alone.

        `limit` is the name of the bound on the jobs of an owner.
        """
        self.files = files
        self.limits = limits
        self.lock = threading.RLock()
        self._kind = kind
        self._limit = limit
        for unfinished in files.paths(f"{prefix}*{TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                unfinished.unlink()
        found = (read_known(kind, path) for path in files.paths(f"{prefix}*.json"))
        known = sorted((job for job in found if job is not None), key=lambda job: job.created)
        self._jobs = {job.id: job for job in known}
        for job in known:
            if not job.has_ended:
                self._hold_inputs(job)

    def of_owner(self, owner: str) -> list[J]:
        """Return the owner's jobs, the oldest first."""
        with self.lock:
            return [self._shown(job) for job in self._jobs.values() if job.owner == owner]

    def get(self, owner: str, job_id: str) -> J:
        """Return the owner's job with this id. Raises NotFoundError if there is none."""
        with self.lock:
            return self._shown(self._find(job_id, owner))

    def unfinished(self, owner: str | None = None) -> list[J]:
        """Return the jobs that have not ended, of one owner or of all, the oldest first."""
        with self.lock:
            return [job for job in self._jobs.values() if not job.has_ended and owner in (None, job.owner)]

    def path(self, job: J, ending: str) -> Path:
        """Return the path of the file of a job with this ending."""
        return self.files.folder / f"{job.id}.{ending}"

    def _find(self, job_id: str, owner: str | None = None) -> J:
        """Return the job with this id as its record has it. Raises NotFoundError if the owner, or nobody, has it."""
        job = self._jobs.get(job_id)
        if job is None or owner not in (None, job.owner):
            raise NotFoundError(f"there is no {job_id[:80]!r} among the {BOUNDS[self._limit].unit}")
        return job

    def _add(self, job: J) -> None:
        """Write a new job, and hold its files. If its owner has as many as allowed, the oldest ended one is forgotten.

        Raises InvalidRequestError if none has ended, and StorageError.
        """
        own, most, what = self.of_owner(job.owner), getattr(self.limits, self._limit), BOUNDS[self._limit].unit
        if len(own) >= most:
            ended = next((other for other in own if other.has_ended), None)
            if ended is None:
                allowed = f"at most {most} unfinished {what} of an API key ({self._limit}); cancel one"
                raise InvalidRequestError(what, most + 1, allowed)
            self._forget(ended)
        self._write(job)
        self._hold_inputs(job)

    def _write(self, job: J) -> None:
        """Write a job, and let go of its files if it has ended. Raises StorageError; then nothing has changed."""
        with storage_errors(_FAILURE):
            write_record(self.path(job, "json"), self._kind.dump_python(job))
        before = self._jobs.get(job.id)
        self._jobs[job.id] = job
        if job.has_ended and before is not None and not before.has_ended:
            for file_id in job.inputs:
                self.files.release(file_id)

    def _forget(self, job: J) -> None:
        """Delete a job that has ended, but not its files. Raises StorageError."""
        with storage_errors(_FAILURE):
            delete_file(self.path(job, "json"))
        del self._jobs[job.id]

    def _shown(self, job: J) -> J:
        """Return a job with what is known of it beyond its record."""
        return job

    def _hold_inputs(self, job: J) -> None:
        for file_id in job.inputs:
            self.files.hold(file_id)
