"""The batches of clients: what each is and how far it has come, kept beside the files that they read and write.

A batch goes through the states that `FOLLOWS` lists. Each change is written before it counts. The lines that it has
finished are in its journal; at its end the two files of the journal become files of its owner.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias
from uuid import uuid4

from pydantic import TypeAdapter

from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine_server.core.bodies import storage_errors
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.jobs.files import FileStore
from rnn_engine_server.jobs.lines import NO_TOKENS, BatchError, Journal, LineCounts, TokenUsage, skip_lines
from rnn_engine_server.jobs.records import JobRecords

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

MOST_WINDOW = 30 * 24 * 3600.0  # seconds
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 24 * 3600.0}
_ID = "batch_"
_CANCELLED = "the batch was cancelled before this request was run"
_FAILURE = "the batch can't be written to the folder of jobs"


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
    owner: str  # the name of an API key; empty without keys
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
    not_run: int = 0  # of the failed ones
    usage: TokenUsage = NO_TOKENS  # of the answers

    @property
    def has_ended(self) -> bool:
        return not FOLLOWS[self.status]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the files that the batch reads."""
        return (self.input_file_id,)


_BATCH = TypeAdapter(Batch)


@dataclass(frozen=True, slots=True)
class JobReadings:
    """The files and batches of all owners at one moment, and what batches have done since the start."""

    num_files: int
    file_bytes: int
    file_capacity: int
    batches: Mapping[BatchStatus, int]  # how many are in each status
    lines: LineCounts
    num_stops: int  # of batches by faults of the server


class BatchStore(JobRecords[Batch]):
    """The batches of all owners, in the folder of their files. Thread-safe; methods block for the disk."""

    def __init__(self, files: FileStore, limits: Limits) -> None:
        """Read the batches that are in the folder of `files`. A damaged record is left alone and logged."""
        super().__init__(files, limits, _BATCH, _ID, "max_key_batches")
        self.num_stops = 0  # of batches by faults of the server; the runner counts them
        self._lines = LineCounts()  # since the start
        self._journals: dict[str, Journal] = {}  # of the running batches

    def create(
        self,
        owner: str,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        *,
        output_lifetime: float | None = None,
        metadata: Mapping[str, str] | None = None,
        total: int | None = None,
    ) -> Batch:
        """Store a new batch, for a runner to check and run, and return it.

        `total` is the number of its lines, which need no check then: each is right or wrong by itself.
        Raises NotFoundError if the owner has no such file, and InvalidRequestError for a file with another purpose, for
        a wrong window, or if the owner may have no more batches. If all of the owner's batches but some have ended, the
        oldest of those gives way.
        """
        now, seconds = self.files.now(), parse_window(completion_window)
        stored = self.files.get(owner, input_file_id)
        if stored.purpose != "batch":
            raise InvalidRequestError(
                "input_file_id", input_file_id, f"a file with the purpose batch, not {stored.purpose}"
            )
        batch = Batch(
            id=f"{_ID}{uuid4().hex}",
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
        if total is not None:
            batch = replace(batch, status="in_progress", entered={"in_progress": now}, total=total)
        with self.lock:
            self._add(batch)
        return batch

    def delete(self, owner: str, batch_id: str) -> None:
        """Delete the owner's batch with this id, and its files.

        Raises NotFoundError if there is none, InvalidRequestError if it has not ended, and StorageError.
        """
        with self.lock:
            batch = self.get(owner, batch_id)
            if not batch.has_ended:
                raise InvalidRequestError("batch", batch_id, "a batch that has ended; cancel it first")
            for file_id in (batch.input_file_id, batch.output_id, batch.error_id):
                with suppress(NotFoundError):
                    self.files.delete(owner, file_id)
            self._forget(batch)

    def enter(
        self,
        batch_id: str,
        status: BatchStatus,
        *,
        total: int | None = None,
        errors: tuple[BatchError, ...] = (),
        ends_as: BatchStatus | None = None,
    ) -> Batch:
        """Write that a batch comes into `status`, and return it as it is then; unchanged if that may not follow.

        Raises NotFoundError if it was deleted, and StorageError.
        """
        with self.lock:
            batch = self._shown(self._find(batch_id))
            if status not in FOLLOWS[batch.status]:
                return batch
            changed = replace(
                batch,
                status=status,
                entered={**batch.entered, status: self.files.now()},
                errors=errors or batch.errors,
                total=batch.total if total is None else total,
                ends_as=ends_as or batch.ends_as,
            )
            self._write(changed)
            return changed

    @contextmanager
    def journal(self, batch: Batch) -> Iterator[Journal]:
        """Open the journal of a batch during a `with` block; its counts are those of the batch. Raises StorageError."""
        with storage_errors(_FAILURE):
            journal = Journal(*self._journal_paths(batch), self.files.now(), self._lines)
        with self.lock:
            self._journals[batch.id] = journal
        try:
            yield journal
        finally:
            with self.lock:
                self._jobs[batch.id] = self._shown(self._jobs[batch.id])
                del self._journals[batch.id]
            journal.close()

    def estimated_finish(self, batch: Batch) -> float | None:
        """Return the Unix time at which a batch will end at its present speed; None if that is not known.

        The speed is that since its lines began to run in this process, so pauses before that do not matter.
        """
        with self.lock:
            journal = self._journals.get(batch.id)
            if journal is None or journal.num_added == 0:
                return None
            now = self.files.now()
            return now + (now - journal.opened) / journal.num_added * (batch.total - len(journal.done))

    def finish(self, batch_id: str) -> Batch:
        """Make files of the journal of a batch that is finalizing or cancelling, and end it. Raises StorageError.

        A second call after a crash completes the first.
        """
        batch = self._jobs[batch_id]
        adopted = self.files.has(batch.output_id) or self.files.has(batch.error_id)
        if batch.status == "cancelling" and not adopted:
            with self.journal(batch) as journal:
                if batch.total and self.files.has(batch.input_file_id):  # its lines were checked
                    path = self.files.content_path(self.files.get(batch.owner, batch.input_file_id))
                    with storage_errors(_FAILURE):
                        skip_lines(path, batch.endpoint, self.limits, journal, "batch_cancelled", _CANCELLED)
            self._write(self._jobs[batch_id])
        for path, file_id, name in zip(
            self._journal_paths(batch), (batch.output_id, batch.error_id), ("output", "errors"), strict=True
        ):
            if path.exists() and path.stat().st_size:
                filename = f"{batch.id}_{name}.jsonl"
                self.files.adopt(path, file_id, batch.owner, filename, "batch_output", batch.output_lifetime)
            with storage_errors(_FAILURE):
                path.unlink(missing_ok=True)
        return self.enter(batch_id, "cancelled" if batch.status == "cancelling" else batch.ends_as)

    def readings(self) -> JobReadings:
        """Return the present counts of files and batches, for metrics."""
        num_files, file_bytes = self.files.usage()
        with self.lock:
            statuses = Counter(batch.status for batch in self._jobs.values())
            return JobReadings(
                num_files,
                file_bytes,
                self.limits.max_all_file_bytes,
                {status: statuses[status] for status in FOLLOWS},
                replace(self._lines),
                self.num_stops,
            )

    def result_ids(self, batch: Batch) -> tuple[str | None, str | None]:
        """Return the ids of the files of answers and of errors; None for one that does not exist."""
        if not batch.has_ended:
            return None, None
        return (batch.output_id if batch.completed else None, batch.error_id if batch.failed else None)

    def _shown(self, job: Batch) -> Batch:
        """Return a batch with the present counts of its lines."""
        journal = self._journals.get(job.id)
        if journal is None:
            return job
        counts = journal.counts
        return replace(
            job,
            completed=counts.completed,
            failed=counts.failed,
            not_run=counts.not_run,
            usage=counts.usage,
        )

    def _journal_paths(self, batch: Batch) -> tuple[Path, Path]:
        return self.path(batch, "output"), self.path(batch, "errors")
