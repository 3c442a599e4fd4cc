"""OpenAI's fine-tuning jobs, with the official client: their course, events, states as models, owners, and restarts."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import math
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.fine_tuning import FineTuningJob
from safetensors.numpy import load

from rnn_engine.cli.session import load_engine
from rnn_engine.demo import model_path
from rnn_engine.errors import InvalidRequestError, NotFoundError
from rnn_engine.loading.runner import open_model
from rnn_engine.loading.settings import LoadSettings, LoraSettings
from rnn_engine.model import LoraChoice
from rnn_engine.training.tuner import RateTried, TunerSettings, Updated
from rnn_engine_server.apis.common.owned import ListOf, PageOf, PartOf
from rnn_engine_server.apis.openai import fine_tuning
from rnn_engine_server.apis.openai.fine_tuning import TUNING_RUNNER, TUNINGS
from rnn_engine_server.apis.openai.models import ModelEntry
from rnn_engine_server.core.app import STORE, make_app
from rnn_engine_server.core.settings import Limits, ServerSettings
from rnn_engine_server.jobs import tuning_process
from rnn_engine_server.jobs.tuning_process import (
    Answer,
    Checked,
    Failed,
    Finished,
    Judgement,
    Started,
    Stuck,
    TuningOrder,
    TuningProcess,
    check_data,
    encode_answer,
    parse_answer,
    tune,
)
from rnn_engine_server.models.orders import LoadOrder
from rnn_engine_server.models.registry import MODELS, ModelRegistry
from rnn_engine_server.store.files import NewFile, lora_file_id
from rnn_engine_server.store.folder import Store
from rnn_engine_server.store.owners import Cursor
from rnn_engine_server.store.tunings import FOLLOWS, Hyperparameters, TuningJob
from tests.support.demo_server import demo_choice
from tests.support.fake_engine import FakeEngine, state_after
from tests.support.http import Body, Through, check_head, check_shape, leave_during
from tests.support.job_server import JobServer
from tests.support.official import openai_client
from tests.support.older_models import tiny_v6_qwen2
from tests.support.tuning_process import STEPS, FakeProcesses

LINES = [json.dumps({"prompt": f"{number}+1=", "completion": f"{number + 1}"}).encode() + b"\n" for number in range(20)]
EXAMPLES = b"".join(LINES)


async def job_server(folder: Path, through: Through, engine: FakeEngine) -> JobServer:
    """Return a server of tuning jobs."""
    return JobServer(folder, engine, served=await through(engine), loading=LoadSettings())


@pytest.fixture
async def server(tmp_path: Path, through: Through) -> JobServer:
    return await job_server(tmp_path, through, FakeEngine())


@pytest.fixture
def processes(server: JobServer, monkeypatch: pytest.MonkeyPatch) -> FakeProcesses:
    made = FakeProcesses(server.engine.state_files)
    monkeypatch.setattr(TuningProcess, "start", made.start)
    return made


@pytest.fixture
async def client(server: JobServer, processes: FakeProcesses) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.run() as client:
        yield client


async def begin(client: openai.AsyncOpenAI, data: bytes = EXAMPLES, **fields: object) -> FineTuningJob:
    file = await client.files.create(file=("examples.jsonl", data), purpose="fine-tune")
    wanted: Any = {"model": "fake", "training_file": file.id, **fields}
    return await client.fine_tuning.jobs.create(**wanted)


async def until(client: openai.AsyncOpenAI, job: FineTuningJob, *statuses: str) -> FineTuningJob:
    while job.status not in (statuses or [status for status, others in FOLLOWS.items() if not others]):
        job = await client.fine_tuning.jobs.retrieve(job.id)
    return job


async def messages(client: openai.AsyncOpenAI, job: FineTuningJob) -> list[str]:
    page = await client.fine_tuning.jobs.list_events(job.id, limit=1000)
    return [event.message for event in page.data[::-1]]


class TestOfficialClient:
    async def test_a_job_is_run_and_its_model_used(self, client: openai.AsyncOpenAI, server: JobServer) -> None:
        method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": "auto"}}}
        begun = await begin(client, suffix="sums", seed=7, method=method, metadata={"a": "b"})
        assert (begun.status, begun.fine_tuned_model, begun.finished_at) == ("validating_files", None, None)
        assert begun.hyperparameters.to_dict() == {
            "n_epochs": 3,
            "batch_size": "auto",
            "learning_rate_multiplier": "auto",
        }
        job = await until(client, begun)
        assert (job.status, job.error, job.seed, job.metadata) == ("succeeded", None, 7, {"a": "b"})
        assert job.trained_tokens == STEPS * 10
        assert job.hyperparameters.to_dict() == {"n_epochs": 3, "batch_size": 8, "learning_rate_multiplier": 1.0}
        assert job.fine_tuned_model is not None
        assert job.fine_tuned_model.startswith("fake:ft-sums-")
        assert (await client.fine_tuning.jobs.list()).data == [job]
        checkpoints = (await client.fine_tuning.jobs.checkpoints.list(job.id)).data
        assert [each.step_number for each in checkpoints] == [8, 6, 4]
        assert checkpoints[0].metrics.train_loss == 2 / 8
        assert checkpoints[0].metrics.valid_loss == 3 / 8
        names = [job.fine_tuned_model, *(each.fine_tuned_model_checkpoint for each in checkpoints)]
        assert {model.id for model in (await client.models.list()).data} == {"fake", *names}
        [result] = job.result_files
        lines = (await client.files.content(result)).text.splitlines()
        assert lines[0] == "step,learning_rate,train_loss,valid_loss,tokens"
        assert lines[1:4] == ["0,,,2,", "1,0.1,2,,10", "2,0.1,1,1.5,10"]
        answer = await client.chat.completions.create(
            model=job.fine_tuned_model, messages=[{"role": "user", "content": "Hi"}]
        )
        assert answer.model == job.fine_tuned_model
        start = server.engine.requests[-1].initial_state
        assert start is not None
        assert all((start.state[name] == values).all() for name, values in state_after([STEPS]).items())
        assert (await client.models.delete(job.fine_tuned_model)).deleted
        with pytest.raises(openai.NotFoundError, match="is gone: it was removed"):
            await client.completions.create(model=job.fine_tuned_model, prompt="Hi")

    async def test_the_events_tell_the_course(self, client: openai.AsyncOpenAI) -> None:
        job = await until(client, await begin(client))
        told = await messages(client, job)
        assert told[:6] == [
            f"Created fine-tuning job: {job.id}",
            f"Validating training file: {job.training_file}",
            f"{job.training_file}: answers without a text, which are not learnt: 1: line 3",
            "Files validated: 20 examples with 400 tokens, 300 of them learnt; moving job to queued state",
            "Fine-tuning job started",
            "Tried learning rate 0.1: validation loss=1.0000",
        ]
        assert told[6:11] == [
            "Step 0/8: validation loss=2.0000",
            "Step 1/8: training loss=2.0000",
            "Step 2/8: training loss=1.0000",
            "Step 2/8: validation loss=1.5000",
            f"Checkpoint created at step 2: {job.fine_tuned_model}:ckpt-step-2",
        ]
        assert told[-3].startswith("Checkpoint created at step 8: ")  # nothing says that the run ended early
        assert told[-2].startswith(f"New fine-tuned model created: {job.fine_tuned_model}; ")
        assert told[-1] == "The job has successfully completed"
        events = (await client.fine_tuning.jobs.list_events(job.id, limit=1000)).data[::-1]
        assert {event.level for event in events} == {"info", "warn"}
        figures = [event.data for event in events if event.type == "metrics"]
        assert figures[1] == {"step": 1, "total_steps": 8, "train_loss": 2.0, "learning_rate": 0.1, "tokens": 10}
        paged = [event.id async for event in client.fine_tuning.jobs.list_events(job.id, limit=3)]
        assert paged[::-1] == [event.id for event in events]

    async def test_the_events_say_if_a_run_ends_early(
        self, client: openai.AsyncOpenAI, processes: FakeProcesses
    ) -> None:
        processes.last_step = 4
        told = await messages(client, await until(client, await begin(client)))
        assert told[-3] == "Training ended after step 4 of 8: the validation loss no longer falls"

    async def test_events_are_streamed_as_they_come(self, client: openai.AsyncOpenAI, processes: FakeProcesses) -> None:
        processes.hold = 5
        job = await begin(client)
        events = client.with_streaming_response.fine_tuning.jobs.list_events
        lines = []
        async with events(job.id, extra_query={"stream": "true"}) as response:
            async for line in response.iter_lines():
                lines.extend([line] if line else [])
                if "Step 4/8: validation" in line:
                    processes.release.set()
        assert lines.pop() == "data: [DONE]"
        sent = [json.loads(line.removeprefix("data: "))["message"] for line in lines]
        assert sent == await messages(client, job)
        await check_head(f"{client.base_url}fine_tuning/jobs/{job.id}/events?stream=true", client.auth_headers)

    async def test_the_shapes_of_the_answers(self, client: openai.AsyncOpenAI) -> None:
        method: Any = {"type": "state", "state": {"hyperparameters": {"learning_rate_multiplier": 0.5}}}
        job = await begin(client, method=method, suffix="x")

        async def shown(path: str) -> Any:  # noqa: ANN401
            return await client.get(f"/fine_tuning/jobs{path}", cast_to=object)

        check_shape(fine_tuning.FineTuningJob, await shown(f"/{job.id}"))
        await until(client, job)
        check_shape(fine_tuning.FineTuningJob, ended := await shown(f"/{job.id}"))
        assert ended["method"]["state"]["hyperparameters"]["learning_rate_multiplier"] == 0.5
        check_shape(PartOf[fine_tuning.FineTuningJob], await shown(""))
        check_shape(PartOf[fine_tuning.FineTuningEvent], await shown(f"/{job.id}/events"))
        check_shape(PageOf[fine_tuning.FineTuningCheckpoint], await shown(f"/{job.id}/checkpoints"))
        check_shape(ListOf[ModelEntry], await client.get("/models", cast_to=object))

    async def test_jobs_are_found_by_their_metadata(self, client: openai.AsyncOpenAI) -> None:
        first, second = [await begin(client, metadata={"name": name}) for name in ("a", "b")]
        listed: Any = await client.fine_tuning.jobs.list(extra_query={"metadata[name]": "a"})
        assert [job.id for job in listed.data] == [first.id]
        assert [job.id async for job in client.fine_tuning.jobs.list(limit=1)] == [second.id, first.id]

    async def test_requests_that_make_no_job(self, client: openai.AsyncOpenAI, processes: FakeProcesses) -> None:
        def refused(message: str) -> pytest.RaisesExc[openai.BadRequestError]:
            return pytest.raises(openai.BadRequestError, match=message)

        with pytest.raises(openai.NotFoundError, match="there is no file 'file-x'"):
            await begin(client, training_file="file-x")
        with refused("method.type: 'dpo' is not allowed; expected 'state', 'supervised' or 'lora'"):
            await begin(client, method={"type": "dpo"})
        with refused("n_epochs"):
            await begin(client, hyperparameters={"n_epochs": 0})
        with refused("hyperparameters.n_epoch"):
            await begin(client, hyperparameters={"n_epoch": 1})
        with refused("hyperparameters: 'an object' is not allowed; expected null, since method.state has them"):
            await begin(client, method={"type": "state", "state": {}}, hyperparameters={"n_epochs": 1})
        with refused("method.state: 'an object' is not allowed; expected null, since the type is supervised"):
            await begin(client, method={"type": "supervised", "state": {}})
        with refused("method.lora: 'an object' is not allowed; expected null, since the type is state"):
            await begin(client, method={"type": "state", "lora": {}})
        with refused("suffix"):
            await begin(client, suffix="a/b")
        with refused("integrations"):
            await begin(client, integrations=[{"type": "wandb", "wandb": {"project": "x"}}])
        with pytest.raises(openai.NotFoundError, match="state 'x' does not exist"):
            await begin(client, model="fake:x")
        file = await client.files.create(file=("lines.jsonl", b"{}"), purpose="batch")
        for name in ("training_file", "validation_file"):
            with refused(f"{name}: '{file.id}' is not allowed; expected a file with the purpose fine-tune, not batch"):
                await begin(client, EXAMPLES, **{name: file.id})
        assert (await client.fine_tuning.jobs.list()).data == []
        assert processes.started == []

    @pytest.mark.usefixtures("client")
    async def test_a_version_that_can_not_be_tuned_is_named(self, server: JobServer) -> None:
        info = replace(server.engine.info, shape=tiny_v6_qwen2())
        with pytest.raises(InvalidRequestError, match=r"model: 'fake' .*expected .*RWKV-5, 6 or 7, not of QRWKV6$"):
            server.app[TUNING_RUNNER].check(info)

    async def test_owners(self, client: openai.AsyncOpenAI) -> None:
        job = await until(client, await begin(client))
        assert job.fine_tuned_model is not None
        with pytest.raises(openai.BadRequestError, match="expected the name of a model without a state"):
            await begin(client, model=job.fine_tuned_model)
        bob = client.with_options(api_key="bob's key")
        jobs = bob.fine_tuning.jobs
        assert (await jobs.list()).data == []
        for call in (jobs.retrieve, jobs.cancel, jobs.pause, jobs.resume, jobs.list_events, jobs.checkpoints.list):
            with pytest.raises(openai.NotFoundError, match="there is no"):
                await call(job.id)
        assert [model.id async for model in bob.models.list()] == ["fake"]
        for use in (bob.models.retrieve, bob.models.delete):
            with pytest.raises(openai.NotFoundError):
                await use(job.fine_tuned_model)
        with pytest.raises(openai.NotFoundError, match=r"state 'ft-.*' does not exist"):
            await bob.completions.create(model=job.fine_tuned_model, prompt="Hi")
        assert (await client.models.retrieve(job.fine_tuned_model)).id == job.fine_tuned_model
        with pytest.raises(openai.BadRequestError, match="a model that was tuned"):
            await client.models.delete("fake")


class TestCourse:
    async def test_a_job_is_paused_and_goes_on(self, client: openai.AsyncOpenAI, processes: FakeProcesses) -> None:
        processes.hold = 4
        job = await begin(client)
        await processes.held.wait()
        with pytest.raises(openai.BadRequestError, match="status: 'running' is not allowed; expected a job whose"):
            await client.fine_tuning.jobs.resume(job.id)
        assert str((await client.fine_tuning.jobs.pause(job.id)).status) == "paused"
        while not processes.started[-1].has_ended:
            await asyncio.sleep(0)
        assert processes.started[-1].words[-1] == "stop"
        with pytest.raises(openai.BadRequestError, match="expected a job whose status is queued or running"):
            await client.fine_tuning.jobs.pause(job.id)
        processes.release.set()
        assert (await client.fine_tuning.jobs.resume(job.id)).status == "queued"
        job = await until(client, job)
        assert (job.status, job.trained_tokens) == ("succeeded", STEPS * 10)
        told = await messages(client, job)
        assert len(set(told)) == len(told), "steps that are run again have no second event"
        assert told.index("The job has been paused") < told.index("Fine-tuning job goes on")
        for call in (client.fine_tuning.jobs.cancel, client.fine_tuning.jobs.pause, client.fine_tuning.jobs.resume):
            with pytest.raises(openai.BadRequestError, match="status: 'succeeded' is not allowed"):
                await call(job.id)

    async def test_a_job_is_cancelled_and_the_next_one_runs(
        self, client: openai.AsyncOpenAI, processes: FakeProcesses, server: JobServer
    ) -> None:
        processes.hold = 4
        first = await begin(client)
        await processes.held.wait()
        second = await until(client, await begin(client), "queued")
        third = await until(client, await begin(client), "queued")
        with pytest.raises(openai.BadRequestError, match="cancel the job first"):
            await client.files.delete(first.training_file)
        assert (await client.fine_tuning.jobs.cancel(third.id)).status == "cancelled"
        assert (await client.fine_tuning.jobs.cancel(first.id)).status == "cancelled"
        await client.files.delete(first.training_file)
        processes.release.set()
        assert (await until(client, second)).status == "succeeded"
        assert [each.what for each in processes.started] == ["check", "tune", "check", "check", "tune"]
        kept = (await client.fine_tuning.jobs.checkpoints.list(first.id)).data
        assert [each.step_number for each in kept] == [2]
        while list(server.folder.glob("blobs/ftjob-*")):  # until the process of the second has ended
            await asyncio.sleep(0)

    async def test_a_client_that_leaves_before_the_answer_gets_what_it_asked_for(
        self, client: openai.AsyncOpenAI, processes: FakeProcesses, server: JobServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        processes.hold = 4
        await leave_during(begin(client), server.app[TUNINGS], "create", monkeypatch)
        await processes.held.wait()
        [job] = (await client.fine_tuning.jobs.list()).data
        await leave_during(client.fine_tuning.jobs.cancel(job.id), server.app[TUNINGS], "enter", monkeypatch)
        while not processes.started[-1].has_ended:
            await asyncio.sleep(0)
        assert (await client.fine_tuning.jobs.retrieve(job.id)).status == "cancelled"

    async def test_bad_data_fails_the_job(self, client: openai.AsyncOpenAI, processes: FakeProcesses) -> None:
        processes.failure = Failed("invalid_training_file", "line 3 is no JSON", "training_file")
        job = await until(client, await begin(client))
        assert job.error is not None
        assert job.error.to_dict() == {
            "code": "invalid_training_file",
            "message": "line 3 is no JSON",
            "param": "training_file",
        }
        assert (job.status, job.finished_at is not None) == ("failed", True)
        assert (await messages(client, job))[-1] == "The job has failed: line 3 is no JSON"
        await client.files.delete(job.training_file)

    async def test_a_process_that_dies_is_started_again(
        self, client: openai.AsyncOpenAI, processes: FakeProcesses
    ) -> None:
        processes.die = [4, 8]
        job = await until(client, await begin(client))
        assert (job.status, job.trained_tokens) == ("succeeded", STEPS * 10)
        assert len(processes.started) == 4
        processes.die = [2, 4, 6, 8]  # each gets further than the one before
        assert (await until(client, await begin(client))).status == "succeeded"
        processes.die = [2, 2, 2]
        job = await until(client, await begin(client), "paused")
        assert "has ended 3 times before its end" in (await messages(client, job))[-1]
        await client.fine_tuning.jobs.resume(job.id)
        assert (await until(client, job)).status == "succeeded"

    async def test_the_process_hears_of_requests(
        self, client: openai.AsyncOpenAI, processes: FakeProcesses, server: JobServer
    ) -> None:
        processes.hold, server.engine.hold = 4, 0
        job = await begin(client)
        await processes.held.wait()
        chat = asyncio.create_task(client.completions.create(model="fake", prompt="Hi"))
        words = processes.started[-1].words
        while "busy" not in words:
            await asyncio.sleep(0)
        server.engine.release.set()
        await chat
        while words[-1] != "idle":
            await asyncio.sleep(0)
        await client.fine_tuning.jobs.cancel(job.id)


BOTH = {"rank": 2, "init": "pissa", "train_state": True}
LORA = {"type": "lora", "lora": {"hyperparameters": {"rank": 3, "alpha": 5, "targets": ["att", "ffn.key", "att"]}}}


def use_demo_file(server: JobServer) -> None:
    """Let the fake model have the file of the demo model, whose tensors say what a LoRA may change."""
    served = server.app[MODELS].default
    served.order = replace(served.order, path=model_path())


class TestLora:
    async def test_the_result_is_a_file_of_the_key(self, client: openai.AsyncOpenAI, server: JobServer) -> None:
        use_demo_file(server)
        job = await until(client, await begin(client, method=LORA, suffix="sums"))
        assert (job.status, job.error) == ("succeeded", None)
        shown: Any = await client.get(f"/fine_tuning/jobs/{job.id}", cast_to=object)
        check_shape(fine_tuning.FineTuningJob, shown)
        assert shown["method"]["lora"]["hyperparameters"] == {
            "n_epochs": 3,
            "batch_size": 8,
            "learning_rate_multiplier": 10.0,  # times 0.01, of a LoRA
            "rank": 3,
            "alpha": 5.0,
            "targets": ["att", "ffn.key"],
            "init": "lora",
            "train_state": False,
            "state_rate": 100.0,
            "train_vectors": False,
        }
        assert job.fine_tuned_model is not None
        metrics, lora = [await client.files.retrieve(each) for each in job.result_files]
        assert (metrics.filename, lora.purpose) == (f"{job.id}_metrics.csv", "fine-tune-results")
        assert lora.filename == f"{job.fine_tuned_model.removeprefix('fake:')}.safetensors"
        content = (await client.files.content(lora.id)).content
        assert (load(content)["blocks.0.att.key.lora_A"] == STEPS).all()
        kept: Any = await client.get(f"/fine_tuning/jobs/{job.id}/checkpoints", cast_to=object)
        check_shape(PageOf[fine_tuning.FineTuningCheckpoint], kept)
        files = {each["fine_tuned_model_checkpoint"]: each["result_file"] for each in kept["data"]}
        assert list(files) == [f"{job.fine_tuned_model}:ckpt-step-{step}" for step in (8, 6, 4)]
        names = {**files, job.fine_tuned_model: lora.id}
        assert names == {name: lora_file_id("ann", name) for name in names}
        path = await server.app_store.files.content("ann", lora.id)
        assert path.read_bytes() == content
        assert {path.name for path in path.parent.glob("*.safetensors")} == set(names.values())
        with pytest.raises(openai.NotFoundError):
            await client.with_options(api_key="bob's key").files.content(lora.id)
        told = await messages(client, job)
        assert f"{job.fine_tuned_model}; its LoRA is that of step 8" in told[-2]
        assert told[-3] == (
            "The LoRA is only a file, since the server has no room to run it; it needs at least --max-loras 1 and "
            "--max-lora-rank 3"
        )
        states: Any = await client.get("/states", cast_to=object)
        assert states["data"] == []
        with pytest.raises(openai.NotFoundError):
            await client.with_options(api_key="bob's key").models.delete(job.fine_tuned_model)
        assert path.exists()
        assert (await client.models.delete(job.fine_tuned_model)).deleted
        assert not path.exists()
        with pytest.raises(openai.NotFoundError):
            await client.models.delete(job.fine_tuned_model)

    async def test_a_state_may_be_trained_beside_it(
        self, client: openai.AsyncOpenAI, server: JobServer, processes: FakeProcesses
    ) -> None:
        use_demo_file(server)
        method = {
            "type": "lora",
            "lora": {"hyperparameters": {"rank": 3, "init": "pissa", "train_state": True, "state_rate": 5}},
        }
        job = await until(client, await begin(client, method=method))
        assert (job.status, job.error) == ("succeeded", None)
        assert processes.started[-1].order.lora == LoraSettings(3, init="pissa", train_state=True, state_rate=5.0)
        assert job.fine_tuned_model is not None
        stored = await client.files.retrieve(job.result_files[1])
        assert stored.filename == f"{job.fine_tuned_model.removeprefix('fake:')}.state"
        assert "--max-lora-rank 6" in (await messages(client, job))[-3]

    async def test_with_vectors_it_is_only_a_file(
        self, client: openai.AsyncOpenAI, server: JobServer, processes: FakeProcesses
    ) -> None:
        use_demo_file(server)
        method = {"type": "lora", "lora": {"hyperparameters": {"rank": 3, "train_vectors": True}}}
        job = await until(client, await begin(client, method=method))
        assert (job.status, job.error) == ("succeeded", None)
        assert processes.started[-1].order.lora == LoraSettings(3, train_vectors=True)
        assert load((await client.files.content(job.result_files[1])).content)
        said = "The LoRA is only a file, since its vectors replace the model's; merge it with --lora"
        assert said in await messages(client, job)
        states: Any = await client.get("/states", cast_to=object)
        assert states["data"] == []

    @pytest.mark.parametrize(
        ("hyperparameters", "refused"),
        [
            ({"rank": 0}, r"method.lora.hyperparameters.rank: 0 is not allowed; expected .*1"),
            ({"rank": 10000}, r"method.lora.hyperparameters.rank: 10000 is not allowed; expected .*512"),
            ({"alpha": 0}, r"method.lora.hyperparameters.alpha: 0 is not allowed; expected .*0"),
            ({"targets": []}, r"method.lora.hyperparameters.targets"),
            ({"targets": ["emb"]}, r"targets: 'emb' is not allowed; expected some of att, ffn, att.key, att.output,"),
            ({"rank": 300, "init": "pissa"}, "rank: 300 is not allowed; expected a whole number from 1 to 256"),
            ({"rank": 200, "init": "pissa"}, "rank: 200 is not allowed; expected at most 128, as many singular values"),
            ({"init": "svd"}, r"method.lora.hyperparameters.init: 'svd' is not allowed; expected 'lora' or 'pissa'"),
            (
                {"train_vectors": True, "train_state": True},
                "train_vectors: True is not allowed; expected false with train_state",
            ),
            ({"rang": 4}, r"method.lora.hyperparameters.rang"),
        ],
    )
    async def test_settings_that_make_no_job(
        self, client: openai.AsyncOpenAI, server: JobServer, hyperparameters: dict[str, object], refused: str
    ) -> None:
        use_demo_file(server)
        with pytest.raises(openai.BadRequestError, match=refused):
            await begin(client, method={"type": "lora", "lora": {"hyperparameters": hyperparameters}})
        assert (await client.fine_tuning.jobs.list()).data == []


async def test_a_file_of_a_lora_may_not_be_too_large(server: JobServer) -> None:
    server.limits = Limits(max_file_bytes=100_000)
    async with server.run() as client:
        use_demo_file(server)
        with pytest.raises(openai.BadRequestError, match=r"rank: 512 .* at most 100000 bytes \(max_file_bytes\), not "):
            await begin(client, method={"type": "lora", "lora": {"hyperparameters": {"rank": 512}}})


async def test_a_lora_that_a_key_has_no_room_for_pauses_its_job(server: JobServer, processes: FakeProcesses) -> None:
    server.limits = Limits(max_key_files=3)
    async with server.run() as client:
        use_demo_file(server)
        job = await until(client, await begin(client, method=LORA), "paused")
        told = await messages(client, job)
        assert told[-1].startswith("The job has been paused, since it can't go on: file: 'file 4' is not allowed")
        assert [line for line in told if line.startswith("The checkpoint of step 4 can't be kept: file: 'file 4'")]
        [kept] = (await client.fine_tuning.jobs.checkpoints.list(job.id)).data
        await client.files.delete(str(kept.to_dict()["result_file"]))
        await client.fine_tuning.jobs.resume(job.id)
        job = await until(client, job)
        assert (job.status, len(job.result_files)) == ("succeeded", 2)
        await client.files.content(job.result_files[1])


async def test_a_lora_that_the_disk_has_no_room_for_pauses_its_job(
    client: openai.AsyncOpenAI, server: JobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_demo_file(server)
    write = NewFile.write_now

    def fail(new: NewFile, data: bytes) -> None:
        write(new, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    begun = await begin(client, method=LORA)
    monkeypatch.setattr(NewFile, "write_now", fail)
    job = await until(client, begun, "paused")
    failed = "the folder of jobs can't be written to: No space left on device"
    told = await messages(client, job)
    assert told[-1] == f"The job has been paused, since it can't go on: {failed}"
    assert f"The checkpoint of step 8 can't be kept: {failed}" in told
    blobs = server.app_store.files.blobs.path("")
    assert not list(blobs.glob("*.safetensors.*"))
    assert [file.purpose for file in (await client.files.list()).data] == ["fine-tune"]
    monkeypatch.setattr(NewFile, "write_now", write)
    job = await until(client, await client.fine_tuning.jobs.resume(job.id))
    kept = {job.result_files[1]}
    assert job.status == "succeeded"
    while {path.name for path in blobs.glob("*.safetensors")} != kept:  # until the process has ended
        await asyncio.sleep(0)


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_process_ends_or_has_ended_before(has_ended: bool) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("sleep", "0" if has_ended else "60", stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    if has_ended:
        await process.stdout.read()
        await process.wait()
    await TuningProcess(process).end(0.0)
    assert (process.returncode == 0) == has_ended


@pytest.mark.parametrize(("step", "method"), [(1, None), (3, None), (4, None), (8, None), (4, LORA), (8, LORA)])
async def test_a_restart_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: Through, step: int, method: Body | None
) -> None:
    """A server is stopped before a step, and its folder copied before, as a kill leaves it. Both go on."""
    (tmp_path / "a").mkdir()
    first = await job_server(tmp_path / "a", through, FakeEngine())
    processes = FakeProcesses(first.engine.state_files, hold=step)
    monkeypatch.setattr(TuningProcess, "start", processes.start)
    async with first.run() as client:
        use_demo_file(first)
        begun = await begin(client, method=method or {"type": "state"})
        await processes.held.wait()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    processes.hold = None
    for folder in ("a", "b"):
        second = await job_server(tmp_path / folder, through, FakeEngine(named=first.engine.named))
        async with second.run() as client:
            with pytest.raises(openai.BadRequestError, match="cancel the job first"):
                await client.files.delete(begun.training_file)
            job = await until(client, begun)
            assert (job.status, job.trained_tokens) == ("succeeded", STEPS * 10)
            told = await messages(client, job)
            assert len(set(told)) == len(told)
            checkpoints = await client.fine_tuning.jobs.checkpoints.list(job.id)
            assert [each.step_number for each in checkpoints.data] == [8, 6, 4]
            await client.files.delete(begun.training_file)
            loras = [file for file in (await client.files.list()).data if file.filename.endswith(".safetensors")]
            assert len(loras) == (0 if method is None else 4)
            for each in job.result_files:
                await client.files.content(each)


async def test_a_job_that_can_not_go_on_after_a_restart_waits_for_better_circumstances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: Through
) -> None:
    first = await job_server(tmp_path, through, FakeEngine())
    processes = FakeProcesses(first.engine.state_files, hold=4)
    monkeypatch.setattr(TuningProcess, "start", processes.start)
    async with first.run() as client:
        begun = await begin(client)
        await processes.held.wait()
    processes.hold, processes.failure = None, Stuck("it began with another model")
    second = await job_server(tmp_path, through, FakeEngine(named=first.engine.named))
    async with second.run() as client:
        job = await until(client, begun, "paused")
        told = (await messages(client, job))[-1]
        assert told == "The job has been paused, since it can't go on: it began with another model"
        processes.failure = None
        await client.fine_tuning.jobs.resume(job.id)
        job = await until(client, job)
        assert (job.status, job.trained_tokens) == ("succeeded", STEPS * 10)


class TestModelNames:
    """`MODEL:STATE` is a model's name in every route that runs a model."""

    BODIES = (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
        ("/api/chat", {"messages": [{"role": "user", "content": "Hi"}], "stream": False}),
        ("/api/generate", {"prompt": "Hi", "stream": False}),
        ("/v1/choices", {"input": "a", "choices": ["b", "c"]}),
        ("/completion", {"prompt": "Hi"}),
    )

    @pytest.mark.parametrize(("path", "body"), BODIES)
    async def test_routes(self, server: JobServer, processes: FakeProcesses, path: str, body: Body) -> None:
        async with server.run() as client:
            job = await until(client, await begin(client))
            url = str(client.base_url).removesuffix("/v1/") + path
            answer: Any = await client.post(url, cast_to=object, body={**body, "model": job.fine_tuned_model})
            start = server.engine.requests[-1].initial_state
            assert start is not None
            assert (start.state["wkv"] == state_after([STEPS])["wkv"]).all()
            assert answer.get("model", job.fine_tuned_model) == job.fine_tuned_model
            missing = {**body, "model": "fake:ft-nothing"}
            with pytest.raises(openai.NotFoundError):
                await client.post(url, cast_to=object, body=missing)
            await client.post(url, cast_to=object, body={**body, "model": "fake:latest"})
            assert server.engine.requests[-1].initial_state is None


class TestStore:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = Store(tmp_path, Limits(max_key_tunings=2))
        yield store
        store.close()

    async def create(self, store: Store) -> TuningJob:
        async with store.files.create("ann") as new:
            new.describe("a.jsonl", "fine-tune", None)
        assert new.stored is not None
        return await store.tunings.create("ann", "m", new.stored.id, method="state", asked=Hyperparameters(), seed=0)

    async def test_a_key_has_a_bound(self, store: Store) -> None:
        first, second = await self.create(store), await self.create(store)
        with pytest.raises(InvalidRequestError, match="at most 2 unfinished tuning jobs of an API key"):
            await self.create(store)
        await store.tunings.enter(first, "failed", "It failed")
        third = await self.create(store)
        assert (await store.tunings.page("ann", Cursor(9))).items == [third, second]
        assert store.readings().num_events == 2
        with pytest.raises(NotFoundError, match=f"there is no fine-tuning job '{first.id}'"):
            await store.tunings.enter(first, "cancelled", "")  # as after it was forgotten during a request for it
        with pytest.raises(NotFoundError):
            await store.tunings.events_after(first, 0, 9)

    async def test_only_what_may_follow_follows(self, store: Store) -> None:
        job, tunings = await self.create(store), store.tunings
        assert (await tunings.enter(job, "succeeded", "no")).status == "validating_files"
        assert (await tunings.enter(job, "queued", "yes")).status == "queued"
        assert (await tunings.enter(job, "cancelled", "yes")).status == "cancelled"
        assert (await tunings.enter(job, "running", "no")).status == "cancelled"
        assert [event.message for event in (await tunings.events_after(job, 0, 9))[0]][1:] == ["yes", "yes"]

    async def test_odd_figures_and_what_happens_once(self, store: Store) -> None:
        job, tunings = await self.create(store), store.tunings
        data = {"step": 1, "train_loss": float("nan")}
        assert await tunings.add_event(job, "after", kind="update", place=1, data=data)
        assert not await tunings.add_event(job, "in other words", kind="update", place=1, data=data)
        events, has_ended = await tunings.events_after(job, 0, 9)
        assert [event.message for event in events] == [f"Created fine-tuning job: {job.id}", "after"]
        assert events[1].data == {"step": 1, "train_loss": None}
        assert not has_ended


class TestProcess:
    def test_answers_are_read_as_they_were_written(self) -> None:
        for answer in (
            Checked(1, 2, 3, ["a\nb"]),
            Started(1, 2, 3),
            Updated(1, 2, None, 0.5, float("inf"), float("inf"), 3),
            RateTried(0.1, float("inf")),
            Judgement(1, 0.5, 0.1),
            Finished(1, 0.5),
            Failed("a", "b"),
            Stuck("a"),
        ):
            line = encode_answer(answer)
            assert line.count("\n") == 1
            assert parse_answer(line.encode()) == answer

    @pytest.mark.parametrize(("share", "seconds"), [(1.0, 0.0), (0.5, 2.0), (0.25, 6.0), (0.1, 18.0), (0.0, math.inf)])
    def test_the_share_of_time(self, share: float, seconds: float) -> None:
        """After two seconds of work while requests run, the device is left to them for their share of the time.

        The process wakes up often enough to show the server that it does not hang.
        """
        clock = [10.0]
        server = tuning_process.Server(io.StringIO(), share, lambda: clock[0])
        waits: list[float] = []

        def wait(timeout: float) -> bool:
            waits.append(timeout)
            clock[0] += timeout
            return len(waits) == 100  # then no request runs any more

        server.idle.wait = wait  # type: ignore[method-assign, assignment]
        clock[0] += 60.0  # for the model to load
        server.begin_work()
        clock[0] += 2.0
        server.rest()
        assert sum(waits) == pytest.approx(min(seconds, 500.0))
        assert max(waits, default=0.0) < tuning_process._LIFE_SECONDS

    def order(self, folder: Path, training: bytes, validation: bytes | None = None) -> TuningOrder:
        paths = [folder / name for name in ("training.data", "validation.data")]
        for path, data in zip(paths, (training, validation or b""), strict=True):
            path.write_bytes(data)
        return TuningOrder(
            model=model_path(),
            loading=LoadSettings("cpu"),
            training=paths[0],
            validation=None if validation is None else paths[1],
            settings=TunerSettings(),
            max_tokens=64,
            share=0.5,
            checkpoint=folder / "checkpoint",
            output=folder / "state",
        )

    async def test_a_full_disk_is_no_fault_of_the_job(self, tmp_path: Path) -> None:
        order = replace(self.order(tmp_path, EXAMPLES), settings=TunerSettings(steps=1, rate=0.1))
        process = await TuningProcess.start("tune", replace(order, output=tmp_path / "missing" / "a.state"))
        answers = list[Answer]()
        async for answer in process.answers():
            answers.append(answer)
            process.say("go")
        await process.end(60.0)
        assert isinstance(answers[-1], Stuck)
        assert "No such file or directory" in answers[-1].message

    def test_data_is_checked(self, tmp_path: Path) -> None:
        long = json.dumps({"prompt": "a", "completion": "b " * 100}).encode() + b"\n"
        found = check_data(self.order(tmp_path, EXAMPLES + LINES[0] + long))
        assert (found.num_examples, found.num_learnt > 0) == (22, True)
        assert found.warnings == [
            "examples with more than 64 tokens, of which only the beginning is learnt: 1: line 22",
            "examples that equal an earlier one: 1: line 21",
        ]

    @pytest.mark.parametrize(
        ("training", "validation", "field", "message"),
        [
            (EXAMPLES + b"{", None, "training_file", r"examples that can't be used: 1: line 21 is no JSON"),
            (b"".join(LINES[:3]), None, "training_file", r"the file has 3 examples; expected at least 10"),
            (EXAMPLES, b"{}\n" + LINES[0], "validation_file", r"examples that can't be used: 1: line 1: the record"),
            (EXAMPLES, EXAMPLES, "data", r"records that .* does not have"),
            (b"", None, "data", r"nothing to learn"),
        ],
    )
    def test_data_that_can_not_be_used(
        self, tmp_path: Path, training: bytes, validation: bytes | None, field: str, message: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=message) as caught:
            check_data(self.order(tmp_path, training, validation))
        assert caught.value.field == field

    def test_a_run_that_can_not_go_on_is_no_failure(self, tmp_path: Path) -> None:
        answers = io.StringIO()
        order = self.order(tmp_path, EXAMPLES)
        order.checkpoint.write_bytes(b"of another version")
        tune(order, tuning_process.Server(answers, 0.5))
        answer = parse_answer(answers.getvalue().encode())
        assert isinstance(answer, Stuck)
        assert answer.message.startswith("checkpoint: ")
        assert answer.message.endswith("as before, or cancel it")

    @pytest.mark.parametrize(("method", "more"), [("state", {}), ("lora", {"rank": 2}), ("lora", BOTH)])
    async def test_a_process_of_its_own_trains(self, tmp_path: Path, method: str, more: dict[str, object]) -> None:
        choice = demo_choice()
        choice = replace(choice, loading=replace(choice.loading, max_loras=1))
        order = LoadOrder("demo", choice.model)
        models = await ModelRegistry.load([order], "demo", lambda _: partial(load_engine, replace(choice, name="demo")))
        app = make_app(models, ServerSettings(loading=choice.loading), store=Store(tmp_path))
        async with openai_client(app) as client:
            hyperparameters = {"n_epochs": 1, "batch_size": 5, "learning_rate_multiplier": 10}
            parameters = {"hyperparameters": {**hyperparameters, **more}}
            begun = await begin(client, model="demo", seed=1, method={"type": method, method: parameters})
            async with client.with_streaming_response.fine_tuning.jobs.list_events(
                begun.id, extra_query={"stream": "true"}
            ) as events:
                await events.read()  # until the job has ended
            job = await client.fine_tuning.jobs.retrieve(begun.id)
            assert (job.status, job.error) == ("succeeded", None)
            checkpoints = (await client.fine_tuning.jobs.checkpoints.list(job.id)).data
            assert [each.step_number for each in checkpoints] == [4, 3, 2]
            assert checkpoints[0].metrics.valid_loss is not None
            assert job.fine_tuned_model is not None
            if more == {"rank": 2}:
                path = await app[STORE].files.content("", job.result_files[1])
                with open_model(choice.model, [LoraChoice(path)]) as merged, open_model(choice.model) as plain:
                    name = "blocks.0.ffn.value.weight"
                    assert (merged.tensor(name) != plain.tensor(name)).any()
            answer = await client.completions.create(
                model=job.fine_tuned_model, prompt="20+1=", max_tokens=4, temperature=0
            )
            assert answer.model == job.fine_tuned_model
