"""The batches of clients: what each is and how far it has come.

The lines that a batch has finished are in its journal, two blobs; at its end they become files of its owner.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from pydantic import TypeAdapter

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_server.core.bodies import storage_errors
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.jobs.lines import NO_TOKENS, BatchError, Journal, LineCounts, TokenUsage, skip_lines
from rnn_engine_server.store.files import FILES, Files, StoredFile
from rnn_engine_server.store.jobs import Jobs
from rnn_engine_server.store.owners import Columns, Table

BatchStatus: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

Endpoint: TypeAlias = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/choices", "/v1/rerank"
]
"""The routes to which the requests of a batch may go."""

FOLLOWS: Mapping[BatchStatus, tuple[BatchStatus, ...]] = MappingProxyType(
    {
        "validating": ("in_progress", "failed", "cancelling"),
        "in_progress": ("finalizing", "cancelling"),
        "finalizing": ("completed", "expired", "failed"),
        "cancelling": ("cancelled",),
        "failed": (),
        "completed": (),
        "expired": (),
        "cancelled": (),
    }
)
"""The states of a batch, each with those that may follow it. It has ended in a state that none follows."""

BATCH_ID: Final = "batch_"
MOST_WINDOW = 30 * 24 * 3600.0  # seconds
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0}
_CANCELLED = "the batch was cancelled before this request was run"
_FAILURE = "the batch can't be written to the folder of jobs"
RESULTS: Final = ("output", "errors")
"""The endings of the two blobs of a journal."""


def parse_window(text: str) -> float:
    """Return the seconds of a completion window such as `24h`. Raises InvalidRequestError."""
    match = _WINDOW.fullmatch(text)
    seconds = 0.0 if match is None else int(match[1]) * _UNITS[match[2]]
    if not 0.0 < seconds <= MOST_WINDOW:
        raise InvalidRequestError(
            "completion_window", text, "a whole number with s, m, h or d, such as 24h; 30d at most"
        )
    return seconds


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch is, and how far it has come."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created: float  # Unix time, seconds, like the next
    expires: float
    output_id: str  # of the file of answers, once there is one
    error_id: str  # of the file of errors
    output_lifetime: float | None = None  # seconds after which both are deleted; None = never
    metadata: Mapping[str, str] = field(default_factory=dict)
    status: BatchStatus = "validating"
    ends_as: BatchStatus = "completed"  # after `finalizing`
    entered: Mapping[str, float] = field(default_factory=dict)  # Unix time at which it came into each status
    errors: tuple[BatchError, ...] = ()  # for which it failed
    total: int = 0  # lines
    completed: int = 0
    failed: int = 0
    usage: TokenUsage = NO_TOKENS  # of the answers

    @property
    def has_ended(self) -> bool:
        return not FOLLOWS[self.status]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the files that the batch reads."""
        return (self.input_file_id,)

    @property
    def columns(self) -> Columns:
        return Columns(self.endpoint, self.status)

    def with_counts(self, counts: LineCounts) -> Batch:
        """Return the batch with the counts of its lines."""
        return replace(self, completed=counts.completed, failed=counts.failed, usage=counts.usage)

    @property
    def result_ids(self) -> tuple[str | None, str | None]:
        """The ids of the files of answers and of errors; None for one that does not exist."""
        if not self.has_ended:
            return None, None
        return (self.output_id if self.completed else None, self.error_id if self.failed else None)


BATCHES: Final = Table("batches", TypeAdapter(Batch), "batch")


class Batches(Jobs[Batch]):
    """The batches of all owners."""

    def __init__(self, database: Database, files: Files, limits: Limits) -> None:
        super().__init__(BATCHES, FOLLOWS, "max_key_batches", len(RESULTS), database, files, limits)
        self.lines = LineCounts()  # since the start
        self.num_stops = 0  # of batches by faults of the server; the runner counts them
        self._journals: dict[str, Journal] = {}  # of the running batches

    async def create(
        self,
        owner: str,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        *,
        output_lifetime: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Batch:
        """Store a new batch, for a runner to check and run, and return it.

        Raises NotFoundError if the owner has no such file, and InvalidRequestError for a file with another purpose, for
        a wrong window, or if the owner may have no more batches or files. If all of the owner's batches but some have
        ended, the oldest of those gives way.
        """
        now, seconds = self.files.now(), parse_window(completion_window)
        batch = Batch(
            id=f"{BATCH_ID}{uuid4().hex}",
            owner=owner,
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=completion_window,
            created=now,
            expires=now + seconds,
            output_id=self.files.new_id(),
            error_id=self.files.new_id(),
            output_lifetime=output_lifetime,
            metadata=dict(metadata or {}),
        )

        def check(transaction: Transaction) -> None:
            purpose = FILES.find(transaction, owner, input_file_id).purpose
            if purpose != "batch":
                raise InvalidRequestError(
                    "input_file_id", input_file_id, f"a file with the purpose batch, not {purpose}"
                )

        await self._add(batch, check)
        return batch

    async def delete(self, owner: str | None, batch_id: str) -> None:
        """Delete the owner's batch with this id, and its files.

        Raises NotFoundError if there is none, InvalidRequestError if it has not ended, and StorageError.
        """
        batch = await self._delete(owner, batch_id, "batch")
        for file_id in (batch.input_file_id, batch.output_id, batch.error_id):
            with suppress(NotFoundError, InvalidRequestError):  # another batch may need the same file
                await self.files.delete(batch.owner, file_id)

    async def enter(
        self,
        batch: Batch,
        status: BatchStatus,
        *,
        total: int | None = None,
        errors: tuple[BatchError, ...] = (),
        ends_as: BatchStatus | None = None,
    ) -> Batch:
        """Write that a batch comes into `status`, and return it as it is then; unchanged if that may not follow.

        Raises NotFoundError if it was deleted, and StorageError.
        """

        def change(batch: Batch, transaction: Transaction) -> Batch:
            if status not in FOLLOWS[batch.status]:
                return batch
            if not FOLLOWS[status]:  # without results
                transaction.after(lambda: self.files.room.give(batch.owner, len(RESULTS), 0))
            return replace(
                self._entered(batch, status),
                errors=errors or batch.errors,
                total=batch.total if total is None else total,
                ends_as=ends_as or batch.ends_as,
            )

        return self.shown(await self.change(batch, change))

    @asynccontextmanager
    async def journal(self, batch: Batch) -> AsyncIterator[Journal]:
        """Open the journal of a batch during an `async with` block; its counts are those of the batch.

        Raises StorageError.
        """
        journal = await asyncio.to_thread(self._open_journal, batch)
        self._journals[batch.id] = journal
        try:
            yield journal
        finally:
            journal.close()
            try:
                await self.change(batch, lambda batch, _: batch.with_counts(journal.counts))
            finally:
                del self._journals[batch.id]

    def shown(self, batch: Batch) -> Batch:
        """Return a batch with the present counts of its lines."""
        journal = self._journals.get(batch.id)
        return batch if journal is None else batch.with_counts(journal.counts)

    def estimated_finish(self, batch: Batch) -> float | None:
        """Return the Unix time at which a batch will end at its present speed; None if that is not known.

        The speed is that since its lines began to run in this process, so pauses before that do not matter.
        """
        journal = self._journals.get(batch.id)
        if journal is None or journal.num_added == 0:
            return None
        now = self.files.now()
        return now + (now - journal.opened) / journal.num_added * (batch.total - len(journal.done))

    async def finish(self, batch_id: str) -> Batch:
        """Make files of the journal of a batch that is finalizing or cancelling, and end it. Raises StorageError.

        A second call after a crash completes the first.
        """
        batch, blobs = await self.get(None, batch_id), self.files.blobs
        ids = dict(zip(RESULTS, (batch.output_id, batch.error_id), strict=True))
        adopted = await asyncio.to_thread(lambda: any(map(blobs.has, ids.values())))
        if batch.status == "cancelling" and not adopted and batch.total:  # its lines were checked
            async with self.journal(batch) as journal:
                with suppress(NotFoundError):
                    path = await self.files.content(batch.owner, batch.input_file_id)
                    await asyncio.to_thread(self._skip, path, batch, journal)
        stored = [
            await asyncio.to_thread(self._adopt, batch, name, file_id)
            for name, file_id in ids.items()
            if await asyncio.to_thread(lambda: blobs.has(file_id) or blobs.num_bytes(f"{batch_id}.{name}") > 0)  # noqa: B023
        ]

        def end(batch: Batch, transaction: Transaction) -> Batch:
            status: BatchStatus = "cancelled" if batch.status == "cancelling" else batch.ends_as
            if status not in FOLLOWS[batch.status]:
                return batch
            for file in stored:
                self.files.record(transaction, file)
            transaction.after(lambda: self.files.room.give(batch.owner, len(RESULTS) - len(stored), 0))
            transaction.after(lambda: blobs.delete(*(f"{batch_id}.{name}" for name in RESULTS)))
            return self._entered(batch, status)

        return await self.change(batch, end)

    def _entered(self, batch: Batch, status: BatchStatus) -> Batch:
        return replace(batch, status=status, entered={**batch.entered, status: self.files.now()})

    def _open_journal(self, batch: Batch) -> Journal:
        def count(num_bytes: int, *, always: bool) -> None:
            if always:
                self.files.room.give(batch.owner, 0, -num_bytes)
            else:
                self.files.room.take(batch.owner, 0, num_bytes)

        outputs, errors = (self.files.blobs.path(f"{batch.id}.{name}") for name in RESULTS)
        with storage_errors(_FAILURE):
            return Journal(outputs, errors, self.files.now(), self.lines, count)

    def _skip(self, path: Path, batch: Batch, journal: Journal) -> None:
        with storage_errors(_FAILURE):
            skip_lines(path, batch.endpoint, self.limits, journal, "batch_cancelled", _CANCELLED)

    def _adopt(self, batch: Batch, name: str, file_id: str) -> StoredFile:
        filename = f"{batch.id}_{name}.jsonl"
        lifetime = batch.output_lifetime
        return self.files.adopt(f"{batch.id}.{name}", file_id, batch.owner, filename, "batch_output", lifetime)
