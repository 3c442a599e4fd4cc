"""The tuning jobs of clients: what each is and how far it has come, and the events of each.

A job goes through the states that `FOLLOWS` lists. Each change is written before it counts. Its events are lines of a
file of their own.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from pydantic import TypeAdapter

from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import append
from rnn_engine.training.tuner import TunerSettings
from rnn_engine_server.core.bodies import storage_errors
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.jobs.files import FileStore
from rnn_engine_server.jobs.records import JobRecords

TuningStatus: TypeAlias = Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]

FOLLOWS: Mapping[TuningStatus, tuple[TuningStatus, ...]] = MappingProxyType(
    {
        "validating_files": ("queued", "failed", "cancelled"),
        "queued": ("running", "paused", "failed", "cancelled"),
        "running": ("succeeded", "paused", "failed", "cancelled"),
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

BASE_RATE: Final = 0.1
"""The learning rate that the multiplier 1 stands for."""
_DEFAULT_BATCH: Final = 8
_ID: Final = "ftjob-"

MethodName: TypeAlias = Literal["state", "supervised"]
Level: TypeAlias = Literal["info", "warn", "error"]
Number: TypeAlias = float | int | None


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
    """A state that was kept while a job was running."""

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
    owner: str  # the name of an API key; empty without keys
    model: str  # the name of the served model whose state is tuned
    method: MethodName
    training_file: str
    validation_file: str | None
    asked: Hyperparameters
    seed: int
    state: str  # the name that the tuned state will have
    result_file: str  # the id of the file of metrics, once there is one
    created: float  # Unix time, seconds
    metadata: Mapping[str, str] = field(default_factory=dict)
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
    def hyperparameters(self) -> Hyperparameters:
        """The hyperparameters that the client asked for; in place of `auto`, the values that are known."""
        asked = self.asked
        if self.num_steps is None or self.num_documents is None:
            return asked
        size = asked.batch_size or _DEFAULT_BATCH
        epochs = asked.n_epochs or max(1, round(self.num_steps * size / self.num_documents))
        found = None if self.rate is None else self.rate / BASE_RATE
        return Hyperparameters(epochs, size, asked.learning_rate_multiplier or found)

    @property
    def settings(self) -> TunerSettings:
        """The settings of the tuner."""
        asked = self.asked
        return TunerSettings(
            epochs=asked.n_epochs,
            batch_size=asked.batch_size or _DEFAULT_BATCH,
            rate=None if asked.learning_rate_multiplier is None else asked.learning_rate_multiplier * BASE_RATE,
            seed=self.seed,
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The ids of the files that the job reads."""
        return (self.training_file, *([] if self.validation_file is None else [self.validation_file]))

    def model_name(self, state: str) -> str:
        """Return the name of the model that starts from a state of this job."""
        return f"{self.model}:{state}"


@dataclass(frozen=True, slots=True)
class TuningEvent:
    """Something that has happened to a job: a message, perhaps with figures."""

    id: str
    created: float  # Unix time, seconds
    level: Level
    message: str
    data: Mapping[str, Number] | None = None  # figures of a step

    @property
    def step(self) -> int:
        """The step of the figures; 0 without figures."""
        return 0 if self.data is None else int(self.data["step"] or 0)


def finite(value: Number) -> Number:
    """Return a number, or None if it is not finite, for JSON has none such."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class TuningReadings:
    """The tuning jobs of all owners at one moment, and what they have done since the start."""

    jobs: Mapping[TuningStatus, int]  # how many are in each status
    updates: int
    tokens: int  # that were trained


_JOB: Final = TypeAdapter(TuningJob)
_EVENT: Final = TypeAdapter(TuningEvent)


class TuningStore(JobRecords[TuningJob]):
    """The tuning jobs of all owners and their events. Thread-safe; methods block for the disk."""

    def __init__(self, files: FileStore, limits: Limits) -> None:
        """Read the jobs in the folder of `files`. A damaged record is left alone and logged."""
        super().__init__(files, limits, _JOB, _ID, "max_key_tunings")
        self.updates = 0  # since the start; the runner counts them, and the next
        self.tokens = 0

    def create(
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
    ) -> TuningJob:
        """Store a new job, for a runner to check and run, and return it.

        Raises NotFoundError if the owner has no such file, and InvalidRequestError for a file with another purpose or
        if the owner may have no more jobs.
        """
        for name, file_id in (("training_file", training_file), ("validation_file", validation_file)):
            if file_id is not None and (purpose := self.files.get(owner, file_id).purpose) != "fine-tune":
                raise InvalidRequestError(name, file_id, f"a file with the purpose fine-tune, not {purpose}")
        key = uuid4().hex
        job = TuningJob(
            id=f"{_ID}{key}",
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
        )
        with self.lock:
            self._add(job)
        self.add_event(job, f"Created fine-tuning job: {job.id}")
        return job

    def change(self, job: TuningJob, change: Callable[[TuningJob], TuningJob]) -> TuningJob:
        """Write a job as `change` makes it of its present form, and return that. Raises StorageError."""
        with self.lock:
            changed = change(self._find(job.id))
            self._write(changed)
            return changed

    def enter(
        self,
        job: TuningJob,
        status: TuningStatus,
        message: str,
        level: Level = "info",
        *,
        among: Collection[TuningStatus] | None = None,
        error: JobError | None = None,
        trained_tokens: int | None = None,
    ) -> TuningJob:
        """Write that a job comes into `status`, with an event, and return its present form.

        It is unchanged if `status` may not follow its own. Raises InvalidRequestError if its own is not `among` some,
        NotFoundError if the job was forgotten, and StorageError.
        """
        with self.lock:
            job = self._find(job.id)
            if among is not None and job.status not in among:
                raise InvalidRequestError("status", job.status, f"a job whose status is {' or '.join(among)}")
            if status not in FOLLOWS[job.status]:
                return job
            ends = not FOLLOWS[status]
            finished = self.files.now() if ends else None
            changed = replace(job, status=status, error=error, finished=finished, trained_tokens=trained_tokens)
            self._write(changed)
            self.add_event(changed, message, level)
            if ends:
                self._unlink(job, "checkpoint", "state")
            return changed

    def add_event(
        self, job: TuningJob, message: str, level: Level = "info", data: Mapping[str, Number] | None = None
    ) -> None:
        """Write an event of a job; figures that are not finite become None. Raises StorageError."""
        figures = None if data is None else {name: finite(value) for name, value in data.items()}
        event = TuningEvent(f"ftevent-{uuid4().hex}", self.files.now(), level, message, figures)
        line = b"\n" + json.dumps(asdict(event)).encode() + b"\n"  # a crash may have left a part of one before it
        with (
            self.lock,
            storage_errors("an event can't be written to the folder of jobs"),
            self.path(job, "events").open("ab", buffering=0) as file,
        ):
            append(file, line)

    def events(self, job: TuningJob) -> tuple[list[TuningEvent], bool]:
        """Return the events of a job, the oldest first, and True if the job has ended. Raises StorageError."""
        found = []
        with self.lock, storage_errors("the events of the job can't be read"), suppress(FileNotFoundError):
            has_ended = self._find(job.id).has_ended
            for line in self.path(job, "events").read_bytes().splitlines():
                with suppress(ValueError):  # a part of a line that a crash has left
                    found.append(_EVENT.validate_json(line))
        return found, has_ended

    def add_results(self, job: TuningJob) -> None:
        """Make the file of a job's metrics, a table of its steps. Raises StorageError."""
        figures = ("step", "learning_rate", "train_loss", "valid_loss", "tokens")
        steps: dict[int, dict[str, Number]] = {}
        for event in self.events(job)[0]:
            if event.data is not None:
                steps.setdefault(event.step, {}).update(event.data)
        rows = [",".join(figures)]
        for _, data in sorted(steps.items()):
            rows.append(",".join("" if (value := data.get(name)) is None else f"{value:.6g}" for name in figures))
        path = self.path(job, "metrics")
        with storage_errors("the metrics can't be written to the folder of jobs"):
            if not self.files.has(job.result_file):
                path.write_text("\n".join(rows) + "\n", "utf-8")
        self.files.adopt(path, job.result_file, job.owner, f"{job.id}_metrics.csv", "fine-tune-results", None)

    def readings(self) -> TuningReadings:
        """Return the present counts, for metrics."""
        with self.lock:
            statuses = Counter(job.status for job in self._jobs.values())
            return TuningReadings({status: statuses[status] for status in FOLLOWS}, self.updates, self.tokens)

    def _forget(self, job: TuningJob) -> None:
        super()._forget(job)
        self._unlink(job, "events", "metrics")

    def _unlink(self, job: TuningJob, *endings: str) -> None:
        for ending in endings:
            with suppress(OSError):
                self.path(job, ending).unlink(missing_ok=True)
