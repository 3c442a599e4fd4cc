"""OpenAI's fine-tuning jobs: here, a job tunes the initial state of a model, or trains a LoRA.

A tuned state then serves as a model's name.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Literal, NotRequired, TypeAlias, get_args

from pydantic import Field
from typing_extensions import TypedDict

from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.settings import MOST_RANK, LoraInit, LoraSettings
from rnn_engine_server.apis.common.owned import (
    Deleted,
    PageOf,
    PartOf,
    cursor_query,
    delete_own,
    listed_owner,
    own,
    page_of,
    page_query,
    part_of,
    query_cursor,
)
from rnn_engine_server.apis.openai.response_items import METADATA_BOUNDS, Metadata
from rnn_engine_server.auth.keys import Scope
from rnn_engine_server.core.bodies import query_page, query_word
from rnn_engine_server.core.call import Call
from rnn_engine_server.core.handlers import DONE, SSE, Piece, RouteTable, Stream
from rnn_engine_server.core.routing import AppKey
from rnn_engine_server.core.schema import RequestBody, described
from rnn_engine_server.jobs.tuning_runner import TuningRunner
from rnn_engine_server.store.events import Event, Level, Number
from rnn_engine_server.store.owners import Page
from rnn_engine_server.store.tunings import (
    BASE_RATE,
    LORA_RATE,
    TUNED_PREFIX,
    Checkpoint,
    Hyperparameters,
    MethodName,
    TuningJob,
    Tunings,
    TuningStatus,
)

TUNINGS = AppKey("tunings", Tunings)
"""The tuning jobs of all API keys."""
TUNING_RUNNER = AppKey("tuning_runner", TuningRunner)

_MOST_LISTED = 1000
_SENT_EVENTS = 256  # of a stream, read at a time
_MOST_SEED = 2**31 - 1
_LORA = LoraSettings()

Auto: TypeAlias = Literal["auto"]


class HyperparametersBody(RequestBody):
    """The hyperparameters of a fine-tuning job."""

    always_strict = True

    n_epochs: Auto | Annotated[int, Field(ge=1, le=1000)] = Field(
        default="auto", description="How often each example is learnt; `auto` is 3, and at least 100 updates in all."
    )
    batch_size: Auto | Annotated[int, Field(ge=1, le=256)] = Field(
        default="auto", description="Examples of an update; `auto` is 8."
    )
    learning_rate_multiplier: Auto | Annotated[float, Field(gt=0, le=1000)] = Field(
        default="auto",
        description=f"The learning rate is {BASE_RATE} times this, for a LoRA {LORA_RATE}; `auto` is the best of a "
        "short search.",
    )

    @property
    def asked(self) -> Hyperparameters:
        """The values; None = auto."""
        return Hyperparameters(
            None if self.n_epochs == "auto" else self.n_epochs,
            None if self.batch_size == "auto" else self.batch_size,
            None if self.learning_rate_multiplier == "auto" else self.learning_rate_multiplier,
        )


class MethodParameters(RequestBody):
    """The parameters of a method."""

    hyperparameters: HyperparametersBody = HyperparametersBody()


class LoraHyperparametersBody(HyperparametersBody):
    """The hyperparameters of a fine-tuning job that trains a LoRA."""

    rank: int = Field(default=_LORA.rank, ge=1, le=MOST_RANK, description="The rank of what is added to a matrix.")
    alpha: float = Field(
        default=_LORA.alpha, gt=0, le=1e6, description="What is added to a matrix is scaled by alpha / rank."
    )
    targets: Annotated[list[str], Field(min_length=1, max_length=32)] = Field(
        default=list(_LORA.targets),
        description="The matrices that are changed: `att` and `ffn`, or single ones such as `att.key`.",
    )
    init: LoraInit = Field(
        default=_LORA.init,
        description="`pissa` begins with the greatest singular values of each matrix. The result subtracts them, so it "
        "has twice the rank.",
    )
    train_state: bool = Field(
        default=_LORA.train_state, description="Also train the initial state; the result is a file with both."
    )
    state_rate: float = Field(
        default=_LORA.state_rate, gt=0, le=1e6, description="How many times the learning rate is that of the state."
    )
    train_vectors: bool = Field(
        default=_LORA.train_vectors,
        description="Also train the vectors of token shifts and gates; the result is only a file, for `--lora`.",
    )


class LoraParameters(MethodParameters):
    """The parameters of the method `lora`."""

    hyperparameters: LoraHyperparametersBody = LoraHyperparametersBody()


class MethodBody(RequestBody):
    """What is trained, and how. `supervised` is OpenAI's name for `state`: the weights of the model do not change.
    `lora` trains low-rank changes of the weights, and its result is a file."""

    type: MethodName
    state: MethodParameters | None = Field(default=None, description="For the type `state`.")
    supervised: MethodParameters | None = Field(default=None, description="For the type `supervised`.")
    lora: LoraParameters | None = Field(default=None, description="For the type `lora`.")


class FineTuningRequest(RequestBody):
    """A request to tune the initial state of a model, or to train a LoRA."""

    model: str = Field(description="The name of a model as `/v1/models` lists it, without a state.")
    training_file: str = Field(description="The id of a file with the purpose `fine-tune`, with at least 10 examples.")
    validation_file: str | None = Field(
        default=None,
        description="The id of a file with examples by which the state is judged. Without it, some of the others are "
        "held out: a twentieth, but at least 8, or a fifth if that is fewer.",
    )
    method: MethodBody = Field(default=MethodBody(type="supervised"), description="What is trained, and how.")
    hyperparameters: HyperparametersBody | None = Field(
        default=None, description="OpenAI's former place of `method.supervised.hyperparameters`."
    )
    suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = Field(
        default=None,
        description=f"A part of the tuned model's name, which is `MODEL:{TUNED_PREFIX}SUFFIX-` and six digits. At most "
        "64 letters, digits, dots, dashes and underscores.",
    )
    seed: int | None = Field(
        default=None, ge=0, le=_MOST_SEED, description="Chooses the examples to hold out, and the order of all others."
    )
    metadata: Metadata = Field(default={}, description=f"Returned with the job unchanged. {METADATA_BOUNDS}")
    integrations: Annotated[list[object], Field(max_length=0)] = Field(
        default=[], description="Only an empty list: no other service gets the metrics."
    )

    @property
    def asked(self) -> Hyperparameters:
        """The hyperparameters. Raises InvalidRequestError if they are in two places, or for another method."""
        name = self.method.type
        for other in get_args(MethodName):
            if other != name and getattr(self.method, other) is not None:
                raise InvalidRequestError(f"method.{other}", "an object", f"null, since the type is {name}")
        own: MethodParameters | None = getattr(self.method, name)
        if own is not None and self.hyperparameters is not None:
            raise InvalidRequestError("hyperparameters", "an object", f"null, since method.{name} has them")
        return (self.hyperparameters or (own or MethodParameters()).hyperparameters).asked

    @property
    def lora(self) -> LoraSettings | None:
        """The settings of the LoRA; None for a state."""
        if self.method.type != "lora":
            return None
        asked = (self.method.lora or LoraParameters()).hyperparameters
        targets = tuple(dict.fromkeys(asked.targets))
        more = asked.init, asked.train_state, asked.state_rate, asked.train_vectors
        return LoraSettings(asked.rank, asked.alpha, targets, *more)


class HyperparametersObject(TypedDict):
    """`auto` stands for a value until it is found. Only a LoRA has a rank and what follows it."""

    n_epochs: Auto | int
    batch_size: Auto | int
    learning_rate_multiplier: Auto | float
    rank: NotRequired[int]
    alpha: NotRequired[float]
    targets: NotRequired[list[str]]
    init: NotRequired[LoraInit]
    train_state: NotRequired[bool]
    state_rate: NotRequired[float]
    train_vectors: NotRequired[bool]


class MethodParametersObject(TypedDict):
    hyperparameters: HyperparametersObject


class MethodObject(TypedDict):
    """How a job trains. Its parameters have the name of its type."""

    type: MethodName
    state: NotRequired[MethodParametersObject]
    supervised: NotRequired[MethodParametersObject]
    lora: NotRequired[MethodParametersObject]


class JobErrorObject(TypedDict):
    code: str
    message: str
    param: str | None


class FineTuningJob(TypedDict):
    """A fine-tuning job, as OpenAI describes one, with the status `paused`. Times are Unix seconds."""

    id: str
    object: Literal["fine_tuning.job"]
    model: str
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    fine_tuned_model: str | None
    organization_id: str
    status: TuningStatus
    training_file: str
    validation_file: str | None
    result_files: list[str]
    trained_tokens: int | None
    error: JobErrorObject | None
    hyperparameters: HyperparametersObject
    method: MethodObject
    seed: int
    integrations: list[object]
    metadata: dict[str, str]


class FineTuningEvent(TypedDict):
    """What has happened to a job. An event of the type `metrics` has the figures of a step: `step`, `total_steps`, and
    `train_loss`, `learning_rate` and `tokens`, or `valid_loss`."""

    id: str
    object: Literal["fine_tuning.job.event"]
    created_at: int
    level: Level
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Number] | None


class CheckpointMetrics(TypedDict):
    step: int
    train_loss: float | None
    valid_loss: float | None
    full_valid_loss: float | None


class FineTuningCheckpoint(TypedDict):
    """A state or a LoRA that was kept while a job was running; a state's name serves as a model's. A LoRA is in a file,
    whose id is `result_file`."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    fine_tuning_job_id: str
    fine_tuned_model_checkpoint: str
    result_file: NotRequired[str]
    step_number: int
    metrics: CheckpointMetrics


ROUTES = RouteTable(uses_model=False)


@ROUTES.post("/v1/fine_tuning/jobs", scope=Scope.MANAGE, uses_model=True)
async def create_job(call: Call, body: FineTuningRequest) -> FineTuningJob:
    """Tune the initial state of a model, or train a LoRA, with the examples of a file."""
    asked, lora, info, runner = body.asked, body.lora, call.engine.info, call.app[TUNING_RUNNER]
    if call.model.state is not None:
        raise InvalidRequestError("model", body.model, "the name of a model without a state")
    runner.check(info)
    if lora is not None:
        await runner.check_lora(info.model, lora)
    create = partial(
        call.app[TUNINGS].create,
        call.principal.name,
        info.model,
        body.training_file,
        validation_file=body.validation_file,
        method=body.method.type,
        asked=asked,
        seed=secrets.randbelow(_MOST_SEED + 1) if body.seed is None else body.seed,
        suffix=body.suffix,
        metadata=body.metadata,
        lora=lora,
    )
    return _job_object(call, await runner.begin(create))


@ROUTES.get(
    "/v1/fine_tuning/jobs",
    query={
        **page_query("jobs", 20, _MOST_LISTED),
        "metadata[NAME]": "Return only jobs whose metadata has this value under NAME.",
    },
)
async def list_jobs(call: Call) -> PartOf[FineTuningJob]:
    """The fine-tuning jobs of the API key."""
    wanted = {
        name.removeprefix("metadata[").removesuffix("]"): value
        for name, value in call.query.items()
        if name.startswith("metadata[")
    }
    cursor = query_cursor(call, 20, _MOST_LISTED)
    found = await call.app[TUNINGS].page(listed_owner(call), cursor, metadata=wanted)
    return part_of(found, partial(_job_object, call))


@ROUTES.get("/v1/fine_tuning/jobs/{id}")
async def get_job(call: Call) -> FineTuningJob:
    """How far a fine-tuning job is."""
    return _job_object(call, await own(call, call.app[TUNINGS].get))


@ROUTES.post("/v1/fine_tuning/jobs/{id}/cancel", scope=Scope.MANAGE)
async def cancel_job(call: Call) -> FineTuningJob:
    """Cancel a fine-tuning job; its checkpoints stay."""
    return _job_object(call, await call.app[TUNING_RUNNER].cancel(await own(call, call.app[TUNINGS].get)))


@ROUTES.post("/v1/fine_tuning/jobs/{id}/pause", scope=Scope.MANAGE)
async def pause_job(call: Call) -> FineTuningJob:
    """Pause a fine-tuning job."""
    return _job_object(call, await call.app[TUNING_RUNNER].pause(await own(call, call.app[TUNINGS].get)))


@ROUTES.post("/v1/fine_tuning/jobs/{id}/resume", scope=Scope.MANAGE)
async def resume_job(call: Call) -> FineTuningJob:
    """Resume a paused fine-tuning job."""
    return _job_object(call, await call.app[TUNING_RUNNER].resume(await own(call, call.app[TUNINGS].get)))


@ROUTES.delete("/v1/fine_tuning/jobs/{id}", scope=Scope.MANAGE)
async def delete_job(call: Call) -> Deleted:
    """Delete a fine-tuning job that has ended; its states stay."""
    return await delete_own(call, call.app[TUNINGS].delete, "fine_tuning.job")


@ROUTES.get(
    "/v1/fine_tuning/jobs/{id}/events",
    answer=PartOf[FineTuningEvent],
    chunk=FineTuningEvent,
    query={
        **cursor_query("events", 20, _MOST_LISTED),
        "stream": "`true` sends all events, the oldest first, and further ones when they happen.",
    },
)
async def list_events(call: Call) -> Stream | PartOf[FineTuningEvent]:
    """What has happened to a fine-tuning job."""
    job = await own(call, call.app[TUNINGS].get)
    if query_word(call, "stream", ("true", "false"), "false") == "true":
        return Stream(_event_pieces(job, call.app[TUNINGS]), SSE, ends_with_server=True)
    return part_of(await call.app[TUNINGS].events(job, query_cursor(call, 20, _MOST_LISTED)), _event_object)


@ROUTES.get("/v1/fine_tuning/jobs/{id}/checkpoints", query=cursor_query("checkpoints", 10, _MOST_LISTED))
async def list_checkpoints(call: Call) -> PageOf[FineTuningCheckpoint]:
    """The newest checkpoints of a fine-tuning job."""
    job = await own(call, call.app[TUNINGS].get)
    page, has_more = query_page(call, {each.id: each for each in job.checkpoints}, 10, _MOST_LISTED)
    return page_of(Page(page, has_more), partial(_checkpoint_object, job))


async def _event_pieces(job: TuningJob, store: Tunings) -> AsyncGenerator[Piece, None]:
    """Yield the events of a job, the oldest first, until it has ended."""
    yield ()
    number = 0  # of the last event that was sent
    while True:
        news = asyncio.create_task(store.wait_for_news())  # from before the events are read
        try:
            events, has_ended = await store.events_after(job, number, _SENT_EVENTS)
            if events:
                yield [{**_event_object(event)} for event in events]
                number = events[-1].number
            elif has_ended:
                yield [DONE]
                return
            else:
                await news
        finally:
            news.cancel()


def _job_object(call: Call, job: TuningJob) -> FineTuningJob:
    has_result = job.status == "succeeded"
    finish = call.app[TUNING_RUNNER].estimated_finish(job)
    hyperparameters = _hyperparameters_object(job)
    method: MethodObject = {"type": job.method}
    method[job.method] = {"hyperparameters": hyperparameters}
    return described(
        FineTuningJob,
        job,
        object="fine_tuning.job",
        created_at=int(job.created),
        finished_at=None if job.finished is None else int(job.finished),
        estimated_finish=None if finish is None else int(finish),
        fine_tuned_model=job.model_name(job.state) if has_result else None,
        organization_id="",
        result_files=list(job.results) if has_result else [],
        error=None if job.error is None else described(JobErrorObject, job.error),
        hyperparameters=hyperparameters,
        method=method,
        integrations=[],
        metadata=dict(job.metadata),
    )


def _hyperparameters_object(job: TuningJob) -> HyperparametersObject:
    found, lora = job.hyperparameters, job.lora
    shown: HyperparametersObject = {
        "n_epochs": found.n_epochs or "auto",
        "batch_size": found.batch_size or "auto",
        "learning_rate_multiplier": found.learning_rate_multiplier or "auto",
    }
    return shown if lora is None else described(HyperparametersObject, lora, targets=list(lora.targets), **shown)


def _event_object(event: Event) -> FineTuningEvent:
    return described(
        FineTuningEvent,
        event,
        object="fine_tuning.job.event",
        created_at=int(event.created),
        type="message" if event.data is None else "metrics",
        data=None if event.data is None else dict(event.data),
    )


def _checkpoint_object(job: TuningJob, checkpoint: Checkpoint) -> FineTuningCheckpoint:
    shown: FineTuningCheckpoint = {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(checkpoint.created),
        "fine_tuning_job_id": job.id,
        "fine_tuned_model_checkpoint": job.model_name(checkpoint.state),
        "step_number": checkpoint.step,
        "metrics": {
            "step": checkpoint.step,
            "train_loss": checkpoint.train_loss,
            "valid_loss": checkpoint.valid_loss,
            "full_valid_loss": checkpoint.valid_loss,
        },
    }
    return shown if job.lora is None else {**shown, "result_file": job.lora_file(checkpoint.state)}
