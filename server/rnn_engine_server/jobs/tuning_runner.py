"""Run tuning jobs: check their data, train one at a time beside the engine, and keep what comes out of it.

Each job runs in a process of its own (`tuning_process.py`), which hears when requests run. States that it writes become
named states of the job's owner, and LoRAs become files.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias
from uuid import uuid4

from rnn_engine.errors import ForbiddenError, InvalidRequestError, RnnEngineError, StateError, StepError, StorageError
from rnn_engine.interface import EngineInfo
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings, LoraSettings
from rnn_engine.loading.trainer import find_pairs
from rnn_engine.training.tuner import RateTried, Updated
from rnn_engine.versions.table import VERSIONS
from rnn_engine_server.auth.engine import KeyViewer
from rnn_engine_server.auth.keys import Principal
from rnn_engine_server.core.tasks import uninterrupted
from rnn_engine_server.jobs.tuning_process import (
    Answer,
    Checked,
    Event,
    Failed,
    Finished,
    Judgement,
    Started,
    Stuck,
    TuningOrder,
    TuningProcess,
    Word,
)
from rnn_engine_server.models.registry import ModelRegistry, ServedModel
from rnn_engine_server.store.tunings import (
    FOLLOWS,
    KEPT_CHECKPOINTS,
    Checkpoint,
    JobError,
    TuningJob,
    Tunings,
    TuningStatus,
    finite,
)
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.named.entry import Retention
from rnn_engine_states.named.quota import Quota
from rnn_engine_states.named.store import StateStore

_LOOK_SECONDS: Final = 0.02  # between two looks whether requests run
_IDLE_SECONDS: Final = 0.5  # without a request, after which training has all the time
_STOP_SECONDS: Final = 20.0  # for a process to write its checkpoint and end
_LOAD_SECONDS: Final = 600.0  # for a model that was unloaded, before a state of it is kept
_RETRY_SECONDS: Final = 5.0  # after which a job that the disk had no room for goes on
_TURN_SECONDS: Final = 300.0  # of a job while another owner's waits
_MOST_STARTS: Final = 3  # of processes one after another that end early and get no further than the one before
_RETENTIONS: Final = (Retention(persistent=True), Retention(ttl=Quota().ttl), Retention())
"""How a state is kept: as the first of these that the server allows."""
_log = logging.getLogger(__name__)


def _report(error: Exception) -> None:
    expected = isinstance(error, RnnEngineError)
    _log.log(logging.WARNING if expected else logging.ERROR, "%s", error, exc_info=not expected)


@dataclass(slots=True)
class _Run:
    """What the server knows of a job that is being checked or trained, beyond its record."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)  # set when the job must not go on
    step: int = 0  # the last one with an event
    num_steps: int | None = None  # that the run has if it does not end early; None before this process's first update
    loss: float | None = None  # of that step
    tokens: int = 0  # trained so far
    begun: tuple[float, int] | None = None  # when this process made its first update, and the number of that
    turn_ends: float = math.inf  # by the monotonic clock; then the job gives way to another owner's


_Take: TypeAlias = Callable[[TuningJob, _Run], Awaitable[None]]


class TuningRunner:
    """Runs the tuning jobs of a store, one at a time, in turns of their owners. For the event loop."""

    def __init__(
        self,
        store: Tunings,
        models: ModelRegistry,
        find_principal: Callable[[str], Principal | None],
        loading: LoadSettings | None,
        share: float,
    ) -> None:
        """Prepare to run jobs. `find_principal` returns the owner of a name; None if its key is gone.

        `loading` are the settings with which models are loaded; None: this server tunes no states. While requests run,
        training may take this `share` of the time.
        """
        self._store = store
        self._models = models
        self._find_principal = find_principal
        self._loading = loading
        self._share = share
        self._runs: dict[str, _Run] = {}  # by job
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._num_wakes = 0  # each may mean jobs that were not seen yet
        self._turns = Counter[tuple[str, str]]()  # first status of a task's jobs, owner -> the number of its last turn
        self._closing = asyncio.Event()

    def check(self, info: EngineInfo) -> None:
        """Raise ForbiddenError if this server tunes no states, and InvalidRequestError if not those of this model."""
        if self._loading is None:
            raise ForbiddenError("this server tunes no states, since it does not know how its models are loaded")
        version = VERSIONS.get(info.shape.version)
        if version.run_backward is None:
            raise InvalidRequestError("model", info.model, f"a model of RWKV-5, 6 or 7, not of {version.title}")
        if info.tokenizer == "none":
            raise InvalidRequestError("model", info.model, "a model with a tokenizer")

    async def check_lora(self, name: str, lora: LoraSettings) -> None:
        """Raise InvalidRequestError if a model lacks the targets of a LoRA, or if its file would be too large."""
        path, most = self._models.find(name).order.path, self._store.limits.max_file_bytes

        def measure() -> int:
            with open_model(path) as opened:
                pairs = 4 * sum(math.prod(shape) for shape in find_pairs(lora, opened.tensors).shapes.values())
                return pairs + (opened.shape.state_bytes if lora.train_state else 0)

        if (num_bytes := await asyncio.to_thread(measure)) > most:
            allowed = f"a rank with which the LoRA has at most {most} bytes (max_file_bytes), not {num_bytes}"
            raise InvalidRequestError("rank", lora.rank, allowed)

    def wake(self) -> None:
        """Check and run the jobs that wait, unless that is being done."""
        if self._loading is None or self._closing.is_set():
            return
        self._num_wakes += 1
        self._begin("check", self._check, ("validating_files",))
        self._begin("tune", self._tune, ("running", "queued"))

    @uninterrupted
    async def begin(self, create: Callable[[], Awaitable[TuningJob]]) -> TuningJob:
        """Call `create`, which stores a job, and check and run the job."""
        job = await create()
        self.wake()
        return job

    @uninterrupted
    async def cancel(self, job: TuningJob) -> TuningJob:
        """Cancel a job. Raises InvalidRequestError if it has ended, and StorageError."""
        among = [status for status, following in FOLLOWS.items() if following]
        return await self._leave(job, "cancelled", "The job has been cancelled", among)

    @uninterrupted
    async def pause(self, job: TuningJob) -> TuningJob:
        """Stop a job, which can be resumed. Raises InvalidRequestError unless it waits or runs, and StorageError."""
        return await self._leave(job, "paused", "The job has been paused", ("queued", "running"))

    @uninterrupted
    async def resume(self, job: TuningJob) -> TuningJob:
        """Have a paused job go on. Raises InvalidRequestError unless it is paused, and StorageError."""
        changed = await self._store.enter(job, "queued", "The job has been resumed, and is queued", among=["paused"])
        self.wake()
        return changed

    def estimated_finish(self, job: TuningJob) -> float | None:
        """Return the Unix time at which a running job will end at its present speed; None if that is not known."""
        run = self._runs.get(job.id)
        if job.status != "running" or run is None or run.begun is None or job.num_steps is None:
            return None
        begun, first = run.begun
        if run.step <= first:
            return None
        per_step = (time.monotonic() - begun) / (run.step - first)
        return self._store.files.now() + per_step * (job.num_steps - run.step)

    async def close(self) -> None:
        """Stop the processes. Their jobs go on after the next start."""
        self._closing.set()
        for run in self._runs.values():
            run.stop.set()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _leave(
        self, job: TuningJob, status: TuningStatus, message: str, among: Collection[TuningStatus]
    ) -> TuningJob:
        changed = await self._store.enter(job, status, message, among=among)
        if (run := self._runs.get(job.id)) is not None:
            run.stop.set()
        else:
            await self._store.clean(job)
        return changed

    # One task checks jobs, and another one trains. Each takes the jobs of some statuses, in turns of their owners.

    def _begin(self, name: str, take: _Take, statuses: Sequence[TuningStatus]) -> None:
        if name not in self._tasks or self._tasks[name].done():
            self._tasks[name] = asyncio.create_task(self._take_all(take, statuses), context=Context())

    async def _take_all(self, take: _Take, statuses: Sequence[TuningStatus]) -> None:
        while (job := await self._next(statuses)) is not None:
            run = self._runs[job.id] = _Run()
            try:
                await take(job, run)
            except Exception as error:
                _report(error)
                await self._interrupt(job, error)
            finally:
                if self._runs.get(job.id) is run:  # and not that of the other task, which may have begun
                    del self._runs[job.id]
                with suppress(StorageError):  # the next start does it
                    await self._store.clean(job)

    async def _next(self, statuses: Sequence[TuningStatus]) -> TuningJob | None:
        """Return the job to take now: one of the owner whose last turn was longest ago. None if there is none."""
        while not self._closing.is_set():
            seen = self._num_wakes
            try:
                waiting = [job for job in await self._store.unfinished() if job.status in statuses]
            except StorageError as error:
                _report(error)
                await self._pause()
                continue
            if waiting:
                turns, task = self._turns, statuses[0]
                job = min(waiting, key=lambda job: (turns[task, job.owner], statuses.index(job.status)))
                turns[task, job.owner] = max(turns.values(), default=0) + 1
                return job
            if seen == self._num_wakes:
                break
        return None

    async def _interrupt(self, job: TuningJob, error: Exception) -> None:
        """Pause a job that can't go on, such as for a full disk, or fail it if its data was not checked yet."""
        reason = str(error) or type(error).__name__
        try:
            if (await self._store.get(None, job.id)).status == "validating_files":
                await self._fail(job, Failed("server_error", reason))
            else:
                message = f"The job has been paused, since it can't go on: {reason}"
                await self._store.enter(job, "paused", message, "error")
        except RnnEngineError:
            await self._pause()

    async def _pause(self) -> None:
        """Wait before the next try, unless the server ends."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), _RETRY_SECONDS)

    async def _check(self, job: TuningJob, run: _Run) -> None:
        if not await self._has_owner(job):
            return
        await self._store.add_event(job, f"Validating training file: {job.training_file}")
        found: Answer = Failed("server_error", "the process that checks the data has ended without an answer")
        async with self._process("check", job, run) as process:
            async for answer in process.answers():
                found = answer
        if run.stop.is_set():
            return
        if not isinstance(found, Checked):
            assert isinstance(found, Failed)
            await self._fail(job, found)
            return
        for warning in found.warnings:
            await self._store.add_event(job, f"{job.training_file}: {warning}", "warn")
        what = f"{found.num_examples} examples with {found.num_tokens} tokens, {found.num_learnt} of them learnt"
        await self._store.enter(job, "queued", f"Files validated: {what}; moving job to queued state")
        self.wake()

    async def _tune(self, job: TuningJob, run: _Run) -> None:
        if not await self._has_owner(job):
            return
        run.step, run.loss, run.tokens = await self._store.progress(job)
        run.turn_ends = time.monotonic() + _TURN_SECONDS
        if job.status != "running":  # as it is after a restart of the server
            job = await self._store.enter(job, "running")
            if job.status != "running":
                return
        if not await self._store.add_event(job, "Fine-tuning job started", kind="started"):
            await self._store.add_event(job, "Fine-tuning job goes on")
        num_vain = 0
        while num_vain < _MOST_STARTS:
            reached, run.begun = run.step, None
            async with self._process("tune", job, run) as process:
                async for answer in process.answers():
                    if await self._take_in(job, run, answer):
                        return
                    if isinstance(answer, Event):
                        process.say("go")
            if run.stop.is_set():
                if run.turn_ends == 0.0:
                    with suppress(InvalidRequestError):  # it was paused or cancelled meanwhile
                        await self._store.enter(job, "queued", "The job waits for its next turn", among=["running"])
                return
            num_vain = 1 if run.step > reached else num_vain + 1
            _log.warning("the process of the tuning job %s has ended before its end", job.id)
        raise StepError(f"the process that trains has ended {_MOST_STARTS} times before its end")

    async def _has_owner(self, job: TuningJob) -> bool:
        """Return True if the key of a job is still there; otherwise the job fails."""
        if self._find_principal(job.owner) is not None:
            return True
        await self._fail(job, Failed("key_removed", f"the API key {job.owner!r} is no longer one of this server"))
        return False

    @asynccontextmanager
    async def _process(self, what: Literal["check", "tune"], job: TuningJob, run: _Run) -> AsyncIterator[TuningProcess]:
        """Run a process for a job during a `with` block, and report to it if requests run, and when it must stop.

        One that does not end then is killed.
        """
        process = await TuningProcess.start(what, await self._order(job))
        patience = _STOP_SECONDS if what == "tune" else 0.0
        watching = asyncio.create_task(self._watch(process, job, run, patience))
        try:
            yield process
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
            await process.end(patience)
            if not watching.cancelled():
                watching.result()  # raises what has ended it

    async def _watch(self, process: TuningProcess, job: TuningJob, run: _Run, patience: float) -> None:
        try:
            await self._report_to(process, job, run)
        except Exception:
            await process.end(patience)
            raise
        await process.end(patience)

    async def _report_to(self, process: TuningProcess, job: TuningJob, run: _Run) -> None:
        """Report to a process if requests run, and end its turn, until its run must stop."""
        said: Word = "idle"
        busy_until = 0.0
        while not run.stop.is_set():
            now = time.monotonic()
            stats = [engine.stats() for model in self._models if (engine := model.open_engine) is not None]
            if any(each.active + each.queued for each in stats):
                busy_until = now + _IDLE_SECONDS
            word: Word = "busy" if now < busy_until else "idle"
            if word != said:
                process.say(word)
                said = word
            with suppress(StorageError):  # the next look tries again
                if now >= run.turn_ends:
                    await self._end_turn(job, run)
            with suppress(TimeoutError):
                await asyncio.wait_for(run.stop.wait(), _LOOK_SECONDS)

    async def _end_turn(self, job: TuningJob, run: _Run) -> None:
        """Stop a job if another owner's waits, or give it another turn."""
        waiting = await self._store.unfinished()
        if any(other.owner != job.owner and other.status in ("queued", "running") for other in waiting):
            run.turn_ends = 0.0
            run.stop.set()
        else:
            run.turn_ends = time.monotonic() + _TURN_SECONDS

    async def _order(self, job: TuningJob) -> TuningOrder:
        files = self._store.files
        model = self._models.find(job.model)
        checkpoint, output = map(files.blobs.path, job.blobs)
        training, *validation = [await files.content(job.owner, file_id) for file_id in job.inputs]
        return TuningOrder(
            model=model.order.path,
            loading=self._loading_of(model),
            training=training,
            validation=validation[0] if validation else None,
            settings=job.settings,
            max_tokens=job.max_tokens or self._store.limits.max_tuning_tokens,
            share=self._share,
            checkpoint=checkpoint,
            output=output,
            lora=job.lora,
        )

    def _loading_of(self, model: ServedModel) -> LoadSettings:
        """Return the settings with which to load a model once more, beside all that are loaded."""
        assert self._loading is not None
        loading, info = model.order.adapt(self._loading), model.info
        if info is None:
            return loading
        weights = ",".join(part for part in info.weights.split(",") if not part.startswith("activations"))
        memory = loading.device_memory
        if memory is not None:
            memory = max(0, memory - sum(each.device_bytes or 0 for each in self._models.infos()))
        device = info.parts[0].device if info.parts else info.device
        return replace(loading, device=device, split=None, weights=weights, device_memory=memory)

    # What the process answers. A run that goes on repeats what came after its checkpoint, which has events already.

    async def _take_in(self, job: TuningJob, run: _Run, answer: Answer) -> bool:
        """Note an answer, and return True if it is the last. Raises StateError if the run can't go on."""
        match answer:
            case Started():
                await self._note_start(job, answer)
            case Updated(trial=None):
                await self._note_update(job, run, answer)
            case RateTried():
                message = f"Tried learning rate {answer.rate:.4g}: validation loss={answer.held_out_loss:.4f}"
                await self._store.add_event(job, message, kind="rate", place=answer.rate)
            case Judgement():
                await self._note_judgement(job, run, answer)
            case Finished():
                await self._finish(job, run, answer)
                return True
            case Failed():
                await self._fail(job, answer)
                return True
            case Stuck():
                raise StateError(answer.message)
        return False

    async def _note_start(self, job: TuningJob, started: Started) -> None:
        most = self._store.limits.max_tuning_tokens
        if started.max_tokens < most:
            message = (
                f"The device has room for examples of {started.max_tokens} tokens, not {most}; longer ones are cut"
            )
            await self._store.add_event(job, message, "warn")

        tokens, steps, documents = started.max_tokens, started.num_steps, started.num_documents
        await self._store.change(
            job, lambda job, _: replace(job, max_tokens=tokens, num_steps=steps, num_documents=documents)
        )

    async def _note_update(self, job: TuningJob, run: _Run, update: Updated) -> None:
        if run.begun is None:
            run.begun = time.monotonic(), update.step
        self._store.updates += 1
        self._store.tokens += update.num_tokens
        run.step, run.num_steps, run.loss = update.step, update.num_steps, update.loss
        message = f"Step {update.step}/{update.num_steps}: training loss={update.loss:.4f}"
        figures = {"train_loss": update.loss, "learning_rate": update.rate, "tokens": update.num_tokens}
        data = {"step": update.step, "total_steps": update.num_steps, **figures}
        if await self._store.add_event(job, message, kind="update", place=update.step, data=data):
            run.tokens += update.num_tokens

    async def _note_judgement(self, job: TuningJob, run: _Run, judgement: Judgement) -> None:
        step, loss = judgement.step, judgement.held_out_loss
        job = await self._store.change(job, lambda job, _: replace(job, rate=judgement.rate))
        assert job.num_steps is not None
        message = f"Step {step}/{job.num_steps}: validation loss={loss:.4f}"
        data = {"step": step, "total_steps": job.num_steps, "valid_loss": loss}
        await self._store.add_event(job, message, kind="judgement", place=step, data=data)
        if step == 0 or any(kept.step == step for kept in job.checkpoints):
            return
        name = f"{job.state}:ckpt-step-{step}"
        try:
            await self._keep(job, name)
        except RnnEngineError as error:  # such as no room for more states
            await self._store.add_event(job, f"The checkpoint of step {step} can't be kept: {error}", "warn")
            return
        kept = Checkpoint(f"ftckpt_{uuid4().hex}", name, self._store.files.now(), step, finite(run.loss), finite(loss))
        checkpoints = (*job.checkpoints, kept)
        old, newest = checkpoints[:-KEPT_CHECKPOINTS], checkpoints[-KEPT_CHECKPOINTS:]
        await self._store.change(job, lambda job, _: replace(job, checkpoints=newest))
        for checkpoint in old:
            if job.lora is not None:
                with suppress(RnnEngineError):
                    await self._store.files.delete(job.owner, job.lora_file(checkpoint.state))
            with suppress(RnnEngineError):  # such as one that its owner has deleted
                async with self._states(job) as (_, states):
                    await states.delete(checkpoint.state)
        message = f"Checkpoint created at step {step}: {job.model_name(name)}"
        await self._store.add_event(job, message, kind="checkpoint", place=step)

    async def _finish(self, job: TuningJob, run: _Run, finished: Finished) -> None:
        if not await self._keep(job, job.state) and job.lora is not None:
            room = f"--max-loras 1 and --max-lora-rank {job.lora.result.rank}"
            reason = f"the server has no room to run it; it needs at least {room}"
            if job.lora.train_vectors:
                reason = "its vectors replace the model's; merge it with --lora"
            await self._store.add_event(job, f"The LoRA is only a file, since {reason}", "warn", "room")
        if run.num_steps is not None and run.step < run.num_steps:
            early = f"Training ended after step {run.step} of {run.num_steps}: the validation loss no longer falls"
            await self._store.add_event(job, early, kind="early_end")
        what = "state" if job.lora is None else "LoRA"
        best = f"its {what} is that of step {finished.best_step}, with validation loss={finished.held_out_loss:.4f}"
        await self._store.add_event(
            job, f"New fine-tuned model created: {job.model_name(job.state)}; {best}", kind="result"
        )
        await self._store.succeed(job, "The job has successfully completed", run.tokens)

    async def _fail(self, job: TuningJob, failed: Failed) -> None:
        error = JobError(failed.code, failed.message, failed.param)
        await self._store.enter(job, "failed", f"The job has failed: {failed.message}", "error", error=error)

    @asynccontextmanager
    async def _states(self, job: TuningJob) -> AsyncIterator[tuple[StateFiles, StateStore]]:
        """Yield what reads the files of a model's states, and the named states of a job's owner.

        Raises ForbiddenError if the owner's key is gone, and UnavailableError if the model can't be loaded.
        """
        principal = self._find_principal(job.owner)
        if principal is None:
            raise ForbiddenError(f"the API key {job.owner!r} is no longer one of this server")
        model = self._models.find(job.model)
        engine = await model.acquire(_LOAD_SECONDS)
        try:
            yield engine.state_files, engine.states.seen_by(KeyViewer(principal))
        finally:
            model.release()

    async def _keep(self, job: TuningJob, name: str) -> bool:
        """Give the state or the LoRA that the process has written a name, unless it has that already.

        A LoRA is kept as a file, too. If it has vectors, or the model no room to run it, it has no name, and the result
        is False.
        """
        path = self._store.files.blobs.path(job.blobs[1])
        if job.lora is not None:
            await self._store.keep_lora(job, name)
            if job.lora.train_vectors:
                return False
        async with self._states(job) as (files, states):
            room = files.lora_room
            if job.lora is not None and not (room.places and job.lora.result.rank <= room.rank):
                return False
            if await states.find(name) is not None:
                return True
            frozen = await asyncio.to_thread(lambda: files.freeze(files.read(path), name))
            for retention in _RETENTIONS:
                try:
                    await states.put(name, frozen, retention, source="fine-tuning")
                    break
                except InvalidRequestError as error:
                    if error.field not in ("persistent", "ttl") or retention == _RETENTIONS[-1]:
                        raise
            return True
