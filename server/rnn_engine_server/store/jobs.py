"""What batches and tuning jobs share: a bound for each owner, states that follow one another, and files they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError
from rnn_engine_server.core.settings import BOUNDS, Limits
from rnn_engine_server.core.tasks import uninterrupted
from rnn_engine_server.store.files import Files
from rnn_engine_server.store.owners import Cursor, Page, Table, Thing, ended_in


class Job(Thing, Protocol):
    """A thing that has not ended at first."""

    @property
    def created(self) -> float: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the files that the job reads. They are held until it has ended."""
        ...

    @property
    def has_ended(self) -> bool: ...


J = TypeVar("J", bound=Job)


class Jobs(Generic[J]):
    """The jobs of one kind, of all owners."""

    def __init__(
        self,
        table: Table[J],
        follows: Mapping[Any, Sequence[str]],
        bound: str,
        num_results: int,
        database: Database,
        files: Files,
        limits: Limits,
    ) -> None:
        """Describe jobs that go through the states of `follows`; in one that nothing follows, they have ended.

        `bound` is the name of the limit on the jobs of an owner. A job makes at most `num_results` files, whose room it
        has from its beginning on.
        """
        self.files = files
        self.limits = limits
        self.table = table
        self._bound = bound
        self._num_results = num_results
        self._database = database
        self._ended = ended_in(follows)

    async def page(self, owner: str | None, cursor: Cursor, metadata: Mapping[str, str] | None = None) -> Page[J]:
        """Return a part of the list of an owner's jobs. Raises InvalidRequestError."""
        return await self._database.read(lambda db: self.table.page(db, owner, cursor, metadata=metadata), owner)

    async def get(self, owner: str | None, job_id: str) -> J:
        """Return the owner's job with this id. Raises NotFoundError if there is none."""
        return await self._database.read(lambda db: self.table.find(db, owner, job_id), owner)

    async def unfinished(self, owner: str | None = None) -> list[J]:
        """Return the jobs that have not ended, of one owner or of all, the oldest first."""
        condition = f"status NOT IN ({self._ended}) AND (?1 IS NULL OR owner = ?1) ORDER BY number"
        return await self._database.read(lambda db: list(self.table.select(db, condition, owner)))

    async def change(self, job: J, change: Callable[[J, Transaction], J]) -> J:
        """Write a job as `change` makes it of its present form, and return that. What `change` raises is raised.

        Raises NotFoundError if the job was deleted, and StorageError.
        """

        def write(transaction: Transaction) -> J:
            before = self.table.find(transaction, None, job.id)
            after = change(before, transaction)
            if after != before:
                self._put(transaction, after)
            return after

        return await self._database.write(write, job.owner)

    @uninterrupted
    async def _add(self, job: J, check: Callable[[Transaction], object]) -> None:
        """Write a new job, after a `check` in the same change.

        If its owner has as many as allowed, the oldest that has ended is forgotten. Raises InvalidRequestError if none
        has ended, or if the owner may have no more files.
        """

        def add(transaction: Transaction) -> None:
            check(transaction)
            most, what = getattr(self.limits, self._bound), BOUNDS[self._bound].unit
            if self.table.count(transaction, job.owner) >= most:
                condition = f"owner = ? AND status IN ({self._ended}) ORDER BY number LIMIT 1"
                oldest = next(self.table.select(transaction, condition, job.owner), None)
                if oldest is None:
                    allowed = f"at most {most} unfinished {what} of an API key ({self._bound}); cancel one"
                    raise InvalidRequestError(what, most + 1, allowed)
                self._forget(transaction, oldest)
            self._put(transaction, job)

        self.files.room.take(job.owner, self._num_results, 0)
        try:
            await self._database.write(add, job.owner)
        except Exception:
            self.files.room.give(job.owner, self._num_results, 0)
            raise

    async def _delete(self, owner: str | None, job_id: str, what: str) -> J:
        """Delete a job that has ended, but not its files. Raises NotFoundError and InvalidRequestError."""

        def delete(transaction: Transaction) -> J:
            job = self.table.find(transaction, owner, job_id)
            if not job.has_ended:
                raise InvalidRequestError(what, job_id, f"a {what} that has ended; cancel it first")
            self._forget(transaction, job)
            return job

        return await self._database.write(delete, owner, frees=True)

    def _put(self, transaction: Transaction, job: J) -> None:
        self.table.put(transaction, job)
        if job.has_ended:
            self.files.release(transaction, job.id)
        else:
            self.files.hold(transaction, job.id, *job.inputs)

    def _forget(self, transaction: Transaction, job: J) -> None:
        self.table.delete(transaction, job)
