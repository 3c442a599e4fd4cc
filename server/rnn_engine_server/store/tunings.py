"""The tuning jobs of clients: what each is and how far it has come, and the events of each."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from pydantic import TypeAdapter

from rnn_engine.database import Database, Transaction
from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine.loading.settings import LoraSettings
from rnn_engine.training.tuner import TunerSettings
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.core.tasks import on_thread
from rnn_engine_server.store import events
from rnn_engine_server.store.events import Event, EventKind, Level, Number
from rnn_engine_server.store.files import FILES, Files, lora_file_id
from rnn_engine_server.store.jobs import Jobs
from rnn_engine_server.store.owners import Columns, Cursor, Page, Table

TuningStatus: TypeAlias = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]

FOLLOWS: Mapping[TuningStatus, tuple[TuningStatus, ...]] = MappingProxyType(
    {
        "validating_files": ("queued", "failed", "cancelled"),
        "queued": ("running", "paused", "failed", "cancelled"),
        "running": ("succeeded", "queued", "paused", "failed", "cancelled"),
        "paused": ("queued", "cancelled"),
        "succeeded": (),
        "failed": (),
        "cancelled": (),
    }
)
"""The states of a tuning job, each with those that may follow it. It has ended in a state that none follows."""

TUNED_PREFIX: Final = "ft-"
"""With this the names of tuned states begin."""
KEPT_CHECKPOINTS: Final = 3
"""How many checkpoints of a job are kept, the newest ones."""
TUNING_ID: Final = "ftjob-"
BASE_RATE: Final = 0.1
"""The learning rate that the multiplier 1 stands for."""
LORA_RATE: Final = 0.01
"""The same for a LoRA."""
_DEFAULT_BATCH: Final = 8
_COPIED_BYTES: Final = 1 << 20  # of a LoRA, at a time

MethodName: TypeAlias = Literal["state", "supervised", "lora"]


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job has failed."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The hyperparameters of a job, under OpenAI's names; None = auto."""

    n_epochs: int | None = None
    batch_size: int | None = None
    learning_rate_multiplier: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state or a LoRA that was kept while a job was running."""

    id: str
    state: str  # its name
    created: float  # Unix time, seconds
    step: int
    train_loss: float | None
    valid_loss: float | None


@dataclass(frozen=True, slots=True)
class TuningJob:
    """What a tuning job is, and how far it has come."""

    id: str
    owner: str
    model: str  # the name of the served model whose state is tuned
    method: MethodName
    training_file: str
    validation_file: str | None
    asked: Hyperparameters
    seed: int
    state: str  # the name that the tuned state, or the LoRA, will have
    result_file: str  # the id of the file of metrics, once there is one
    created: float  # Unix time, seconds
    metadata: Mapping[str, str] = field(default_factory=dict)
    lora: LoraSettings | None = None  # None: the job tunes a state
    status: TuningStatus = "validating_files"
    finished: float | None = None  # Unix time, seconds
    error: JobError | None = None
    max_tokens: int | None = None  # of an example; known once training has begun
    num_steps: int | None = None  # the same
    num_documents: int | None = None  # the same
    rate: float | None = None  # the learning rate; None until it is known
    trained_tokens: int | None = None  # once the job has succeeded
    checkpoints: tuple[Checkpoint, ...] = ()  # that are kept, the oldest first

    @property
    def has_ended(self) -> bool:
        return not FOLLOWS[self.status]

    @property
    def columns(self) -> Columns:
        return Columns(self.model, self.status)

    @property
    def hyperparameters(self) -> Hyperparameters:
        """The hyperparameters that the client asked for; in place of `auto`, the values that are known."""
        asked = self.asked
        if self.num_steps is None or self.num_documents is None:
            return asked
        size = asked.batch_size or _DEFAULT_BATCH
        epochs = asked.n_epochs or max(1, round(self.num_steps * size / self.num_documents))
        found = None if self.rate is None else self.rate / self.base_rate
        return Hyperparameters(epochs, size, asked.learning_rate_multiplier or found)

    @property
    def base_rate(self) -> float:
        """The learning rate that the multiplier 1 stands for."""
        return BASE_RATE if self.lora is None else LORA_RATE

    @property
    def settings(self) -> TunerSettings:
        """The settings of the tuner."""
        asked = self.asked
        return TunerSettings(
            epochs=asked.n_epochs,
            batch_size=asked.batch_size or _DEFAULT_BATCH,
            rate=None if asked.learning_rate_multiplier is None else asked.learning_rate_multiplier * self.base_rate,
            seed=self.seed,
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the files that the job reads."""
        return (self.training_file, *([] if self.validation_file is None else [self.validation_file]))

    @property
    def blobs(self) -> tuple[str, str]:
        """The names of what the job's process writes: its checkpoint, and the state or the LoRA."""
        return f"{self.id}.checkpoint", f"{self.id}.{self.suffix}"

    @property
    def suffix(self) -> str:
        """The end of the name of a file with the state or the LoRA."""
        return "state" if self.lora is None or self.lora.train_state else "safetensors"

    @property
    def results(self) -> tuple[str, ...]:
        """The ids of the files that the job has made once it has succeeded: the metrics, and perhaps a LoRA."""
        return (self.result_file, *([] if self.lora is None else [self.lora_file(self.state)]))

    def model_name(self, state: str) -> str:
        """Return the name of the model that starts from a state of this job, or has a LoRA of it."""
        return f"{self.model}:{state}"

    def lora_file(self, name: str) -> str:
        """Return the id of the file of a LoRA of this job."""
        return lora_file_id(self.owner, self.model_name(name))


def finite(value: Number) -> Number:
    """Return a number, or None if it is not finite, for JSON has none such."""
    return value if value is not None and math.isfinite(value) else None


TUNINGS: Final = Table("tunings", TypeAdapter(TuningJob), "fine-tuning job")


class Tunings(Jobs[TuningJob]):
    """The tuning jobs of all owners and their events."""

    def __init__(self, database: Database, files: Files, limits: Limits) -> None:
        super().__init__(TUNINGS, FOLLOWS, "max_key_tunings", 1, database, files, limits)
        self.updates = 0  # since the start; the runner counts them, and the next
        self.tokens = 0
        self._news = asyncio.Condition()

    async def create(
        self,
        owner: str,
        model: str,
        training_file: str,
        *,
        method: MethodName,
        asked: Hyperparameters,
        seed: int,
        validation_file: str | None = None,
        suffix: str | None = None,
        metadata: Mapping[str, str] | None = None,
        lora: LoraSettings | None = None,
    ) -> TuningJob:
        """Store a new job, for a runner to check and run, and return it.

        Raises NotFoundError if the owner has no such file, and InvalidRequestError for a file with another purpose or
        if the owner may have no more jobs or files.
        """
        key = uuid4().hex
        job = TuningJob(
            id=f"{TUNING_ID}{key}",
            owner=owner,
            model=model,
            method=method,
            training_file=training_file,
            validation_file=validation_file,
            asked=asked,
            seed=seed,
            state=f"{TUNED_PREFIX}{f'{suffix}-' if suffix else ''}{key[:6]}",
            result_file=self.files.new_id(),
            created=self.files.now(),
            metadata=dict(metadata or {}),
            lora=lora,
        )

        def check(transaction: Transaction) -> None:
            for name, file_id in (("training_file", training_file), ("validation_file", validation_file)):
                if file_id is None:
                    continue
                if (purpose := FILES.find(transaction, owner, file_id).purpose) != "fine-tune":
                    raise InvalidRequestError(name, file_id, f"a file with the purpose fine-tune, not {purpose}")
            events.add(transaction, job.id, job.created, f"Created fine-tuning job: {job.id}")

        await self._add(job, check)
        return job

    async def delete(self, owner: str | None, job_id: str) -> None:
        """Delete the owner's job with this id, and its events, but not its files and states.

        Raises NotFoundError if there is none, InvalidRequestError if it has not ended, and StorageError.
        """
        await self._delete(owner, job_id, "fine-tuning job")

    async def enter(
        self,
        job: TuningJob,
        status: TuningStatus,
        message: str | None = None,
        level: Level = "info",
        *,
        among: Collection[TuningStatus] | None = None,
        error: JobError | None = None,
    ) -> TuningJob:
        """Write that a job comes into `status`, perhaps with an event, and return its present form.

        It is unchanged if `status` may not follow its own. Raises InvalidRequestError if its own is not one of `among`,
        NotFoundError if the job was forgotten, and StorageError.
        """

        def change(job: TuningJob, transaction: Transaction) -> TuningJob:
            if among is not None and job.status not in among:
                raise InvalidRequestError("status", job.status, f"a job whose status is {' or '.join(among)}")
            if status not in FOLLOWS[job.status]:
                return job
            now, ends = self.files.now(), not FOLLOWS[status]
            if message is not None:
                events.add(transaction, job.id, now, message, level)
            if ends and status != "succeeded":
                transaction.after(lambda: self.files.room.give(job.owner, 1, 0))  # of the table of steps
            finished = now if ends else None
            return replace(job, status=status, error=error, finished=finished)

        changed = await self.change(job, change)
        await self._notify()
        return changed

    async def add_event(
        self,
        job: TuningJob,
        message: str,
        level: Level = "info",
        kind: EventKind = "message",
        place: float | None = None,
        data: Mapping[str, Number] | None = None,
    ) -> bool:
        """Write an event of a job; figures that are not finite become None. Return False if the job has it already.

        Raises StorageError.
        """
        figures = None if data is None else {name: finite(value) for name, value in data.items()}
        now = self.files.now()
        is_new = await self._database.write(
            lambda transaction: events.add(transaction, job.id, now, message, level, kind, place, figures), job.owner
        )
        await self._notify()
        return is_new

    async def events(self, job: TuningJob, cursor: Cursor) -> Page[Event]:
        """Return a part of the events of a job. Raises InvalidRequestError and StorageError."""
        return await self._database.read(lambda db: events.page(db, job.id, cursor), job.owner)

    async def events_after(self, job: TuningJob, number: int, limit: int) -> tuple[list[Event], bool]:
        """Return the first events of a job after one, and True if the job had ended before that.

        Raises NotFoundError if it was forgotten, and StorageError.
        """
        has_ended = (await self.get(None, job.id)).has_ended
        return await self._database.read(lambda db: events.after(db, job.id, number, limit), job.owner), has_ended

    async def progress(self, job: TuningJob) -> tuple[int, float | None, int]:
        """Return the last step of a job that has an event, its loss, and the tokens of all steps."""
        return await self._database.read(lambda db: events.progress(db, job.id), job.owner)

    async def keep_lora(self, job: TuningJob, name: str) -> None:
        """Keep the LoRA that a job's process has written as a file of its owner, unless it is kept already.

        Raises InvalidRequestError if the owner has no room for it, and StorageError.
        """
        with suppress(NotFoundError):
            await self.files.get(job.owner, job.lora_file(name))
            return
        async with (
            on_thread(self.files.blobs.open(job.blobs[1])) as written,
            self.files.create(job.owner, job.lora_file(name)) as new,
        ):
            new.describe(f"{name.replace(':', '-')}.{job.suffix}", "fine-tune-results", None)
            while piece := await asyncio.to_thread(written.read, _COPIED_BYTES):
                await new.write(piece)

    async def succeed(self, job: TuningJob, message: str, trained_tokens: int) -> None:
        """Make the file of a job's metrics, a table of its steps, and let the job succeed. Raises StorageError."""
        blobs, name = self.files.blobs, f"{job.id}.metrics"
        table = await self._database.read(lambda db: events.table_of_steps(db, job.id), job.owner)

        def write() -> None:
            with blobs.create(name) as file:
                file.write(table.encode())

        await asyncio.to_thread(write)
        filename, adopt = f"{job.id}_metrics.csv", self.files.adopt
        stored = await asyncio.to_thread(adopt, name, job.result_file, job.owner, filename, "fine-tune-results", None)

        def change(job: TuningJob, transaction: Transaction) -> TuningJob:
            if "succeeded" not in FOLLOWS[job.status]:
                transaction.after(lambda: blobs.delete(stored.id))
                return job
            self.files.record(transaction, stored)
            transaction.after(lambda: self.files.room.give(job.owner, 0, -stored.num_bytes))
            now = self.files.now()
            events.add(transaction, job.id, now, message)
            return replace(job, status="succeeded", finished=now, trained_tokens=trained_tokens)

        await self.change(job, change)
        await self._notify()

    async def wait_for_news(self) -> None:
        """Wait until some job has an event more."""
        async with self._news:
            await self._news.wait()

    async def clean(self, job: TuningJob) -> None:
        """Delete what the process of a job has written, if the job has ended. The process must have ended, too."""
        with suppress(NotFoundError):
            if not (await self.get(None, job.id)).has_ended:
                return
        await asyncio.to_thread(self.files.blobs.delete, *job.blobs)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _forget(self, transaction: Transaction, job: TuningJob) -> None:
        super()._forget(transaction, job)
        events.delete(transaction, job.id)
