"""The records of jobs of one kind, kept in the folder of the files that the jobs read and write."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine.files import TEMPORARY_SUFFIX, delete_file, write_record
from server.core.bodies import storage_errors
from server.core.settings import BOUNDS
from server.jobs.files import FileStore, read_known


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


J = TypeVar("J", bound=Job)


class JobRecords(Generic[J]):
    """The jobs of all owners. Thread-safe; methods block for the disk."""

    def __init__(self, files: FileStore, kind: TypeAdapter[J], prefix: str, limit: str) -> None:
        """Read the jobs in the folder of `files`, whose ids begin with `prefix`. Damaged records are left alone.

        `limit` is the name of the bound on the jobs of an owner.
        """
        self.files = files
        self.lock = threading.RLock()
        self._kind = kind
        self._limit = limit
        for unfinished in files.paths(f"{prefix}*{TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                unfinished.unlink()
        found = (read_known(kind, path) for path in files.paths(f"{prefix}*.json"))
        known = sorted((job for job in found if job is not None), key=lambda job: job.created)
        self._jobs = {job.id: job for job in known}

    @property
    def what(self) -> str:
        """What the jobs are called, such as `batches`."""
        return BOUNDS[self._limit].unit

    def of_owner(self, owner: str) -> list[J]:
        """Return the owner's jobs, the oldest first."""
        with self.lock:
            return [job for job in self._jobs.values() if job.owner == owner]

    def get(self, owner: str, job_id: str) -> J:
        """Return the owner's job with this id. Raises NotFoundError if there is none."""
        with self.lock:
            job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            raise NotFoundError(f"there is no {job_id[:80]!r} among the {self.what}")
        return job

    def latest(self, job: J) -> J:
        """Return the present form of a job."""
        with self.lock:
            return self._jobs[job.id]

    def unfinished(self, owner: str | None = None) -> list[J]:
        """Return the jobs that have not ended, of one owner or of all, the oldest first."""
        with self.lock:
            return [job for job in self._jobs.values() if not job.has_ended and owner in (None, job.owner)]

    def add(self, job: J) -> None:
        """Write a new job. If its owner has as many as allowed, the oldest that has ended is deleted.

        Raises InvalidRequestError if none has ended, and StorageError.
        """
        most: int = getattr(self.files.limits, self._limit)
        with self.lock:
            own = self.of_owner(job.owner)
            if len(own) >= most:
                ended = next((other for other in own if other.has_ended), None)
                if ended is None:
                    allowed = f"at most {most} unfinished {self.what} of an API key ({self._limit}); cancel one"
                    raise InvalidRequestError(self.what, most + 1, allowed)
                self.delete(ended)
            self.write(job)

    def write(self, job: J) -> None:
        """Write a job that is new or has changed. Raises StorageError; then nothing has changed."""
        with self.lock:
            with storage_errors("the job can't be written to the folder of jobs"):
                write_record(self.path(job, "json"), self._kind.dump_python(job))
            self._jobs[job.id] = job

    def delete(self, job: J) -> None:
        """Delete the record of a job. Raises StorageError."""
        with self.lock:
            with storage_errors("the job can't be deleted from the folder of jobs"):
                delete_file(self.path(job, "json"))
            del self._jobs[job.id]

    def path(self, job: J, ending: str) -> Path:
        """Return the path of the file of a job with this ending."""
        return self.files.folder / f"{job.id}.{ending}"
