"""A test of a server with a batch and a fine-tuning job that is killed at random moments until both have ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
from aiohttp import ClientError, ClientSession, FormData

from tools.kill.lives import Lives
from tools.live_server.caller import TEXT, Caller, some_words
from tools.live_server.process import ROOT, ServerProcess
from tools.reliability_table import Row

_DATA: Final = ROOT / "docs" / "state-tuning" / "calls.jsonl"
_LINES: Final = 600  # of the batch
METHODS: Final = {"state": 30.0, "lora": 1.0}  # of fine-tuning, each with the multiplier of its learning rate
_SHORTEST, _LONGEST = 1.0, 25.0  # seconds of the life of a server
_PATIENCE: Final = 10.0  # seconds in which the process of a job must end after its server
_LOOK_SECONDS: Final = 0.2
_BATCHES, _JOBS, _FILES = "/v1/batches", "/v1/fine_tuning/jobs", "/v1/files"
_UNFINISHED: Final = {".partial", ".output", ".errors"}


@dataclass(frozen=True, slots=True)
class Results:
    """What both jobs have made: the answers of the batch by the ids of their lines, and digests of what was trained."""

    answers: Mapping[str, str]
    states: Mapping[str, str]  # or LoRAs, by step


@dataclass
class JobLives(Lives):
    """Lives of a server that runs a batch and a fine-tuning job, up to the end of both."""

    longest_life: float = inf  # seconds
    method: str = "state"
    batch: str = ""  # its id, once it is there
    job: str = ""
    resumed: int = 0  # starts after which the fine-tuning job went on from a checkpoint
    results: Results | None = None  # once both have ended

    def cut_short(self) -> list[Path]:
        self.resumed += any((self.folder / "jobs" / "blobs").glob("ftjob-*.checkpoint"))
        return []  # a job removes its own when it goes on

    def serve_options(self) -> Sequence[str]:
        # With the device `auto`, another run may have another device, and so other states.
        options = ("--device", "cpu", "--state-folder", str(self.folder))
        return (*options, "--max-loras", "1") if self.method == "lora" else options

    async def check(self, caller: Caller) -> None:
        if not self.batch:
            await self._begin(caller)

    async def change_until_killed(self, session: ClientSession, server: ServerProcess) -> bool:
        caller = self._caller(session, server.url)
        deadline = time.monotonic() + self.random.uniform(min(_SHORTEST, self.longest_life), self.longest_life)
        while time.monotonic() < deadline:
            if await self._has_ended(caller):
                await asyncio.sleep(_PATIENCE)  # the job's process ends after the job, and then its files are deleted
                self.results = await self._results(caller)
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        children = psutil.Process(server.pid).children()
        server.kill()
        _, alive = psutil.wait_procs(children, _PATIENCE)
        self.note(not alive, f"{len(alive)} processes of jobs outlived their server")
        return True

    async def _begin(self, caller: Caller) -> None:
        random, lines = Random(0), []
        for number in range(_LINES):
            body = {"prompt": some_words(random, 12), "temperature": 0, "max_tokens": 16}
            lines.append(json.dumps({"custom_id": f"line {number}", "method": "POST", "url": TEXT, "body": body}))
        file_id = await self._upload(caller, "batch", "\n".join(lines).encode())
        batch = {"input_file_id": file_id, "endpoint": TEXT, "completion_window": "24h"}
        self.batch = (await caller.call("POST", _BATCHES, batch))["id"]
        model = (await caller.call("GET", "/v1/models"))["data"][0]["id"]
        file_id = await self._upload(caller, "fine-tune", _DATA.read_bytes())
        settings = {"n_epochs": 4, "batch_size": 4, "learning_rate_multiplier": METHODS[self.method]}
        method = {"type": self.method, self.method: {"hyperparameters": settings}}
        job = {"model": model, "training_file": file_id, "seed": 0, "method": method}
        self.job = (await caller.call("POST", _JOBS, job))["id"]

    async def _upload(self, caller: Caller, purpose: str, data: bytes) -> str:
        form = FormData({"purpose": purpose})
        form.add_field("file", data, filename="data.jsonl")
        async with caller.session.post(caller.url + _FILES, data=form) as response:
            return str((await response.json())["id"])

    async def _has_ended(self, caller: Caller) -> bool:
        batch = await caller.call("GET", f"{_BATCHES}/{self.batch}")
        job = await caller.call("GET", f"{_JOBS}/{self.job}")
        return batch["completed_at"] is not None and job["finished_at"] is not None

    async def _results(self, caller: Caller) -> Results:
        batch = await caller.call("GET", f"{_BATCHES}/{self.batch}")
        self.note(batch["request_counts"]["completed"] == _LINES, f"the batch has {batch['request_counts']}")
        content = await caller.call("GET", f"{_FILES}/{batch['output_file_id']}/content")
        lines = [json.loads(each) for each in content.splitlines()]
        self.note(len(lines) == _LINES, f"the file of answers has {len(lines)} lines")
        job = await caller.call("GET", f"{_JOBS}/{self.job}")
        self.note(job["status"] == "succeeded", f"the fine-tuning job has ended as {job['status']}: {job['error']}")
        await self._check_events(caller)
        kept = (await caller.call("GET", f"{_JOBS}/{self.job}/checkpoints"))["data"]
        names = {each["step_number"]: each.get("result_file", each["fine_tuned_model_checkpoint"]) for each in kept}
        names["best"] = [job["fine_tuned_model"], *job["result_files"][1:]][-1]
        blobs = (self.folder / "jobs").rglob("*")
        left = [path.name for path in blobs if path.suffix in _UNFINISHED or path.name.startswith("ftjob-")]
        self.note(not left, f"files are left: {left}")
        return Results(
            {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in lines},
            {str(step): await self._digest(caller, name) for step, name in names.items()},
        )

    async def _check_events(self, caller: Caller) -> None:
        """Check that the fine-tuning job has figures of each step once."""
        events: list[Any] = (await caller.call("GET", f"{_JOBS}/{self.job}/events?limit=1000"))["data"]
        figures = [event["data"] for event in events if event["type"] == "metrics"]
        trained = sorted(data["step"] for data in figures if "train_loss" in data)
        self.note(trained == list(range(1, len(trained) + 1)), "steps of the job are missing or come twice")
        self.note(len(trained) == figures[0]["total_steps"], f"{len(trained)} steps, not {figures[0]['total_steps']}")

    async def _digest(self, caller: Caller, name: str) -> str:
        is_file = self.method == "lora"
        path = f"{_FILES}/{name}" if is_file else f"/v1/states/{name.partition(':')[2]}"
        return str((await caller.call("GET", path))["sha256" if is_file else "digest"])

    def note(self, held: bool, fault: str) -> None:
        super().note(held, f"{self.folder.name}: {fault}")


@dataclass
class JobCampaign:
    """Runs that are killed at random moments, and whose results are compared with those of an undisturbed one."""

    folder: Path
    options: tuple[str, ...]
    random: Random
    method: str
    runs: list[JobLives] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    compared: int = 0

    @property
    def kills(self) -> int:
        return sum(run.kills for run in self.runs)

    async def run(self, kills: int) -> None:
        """Make one undisturbed run, and then others until servers were killed `kills` times."""
        expected = await self._live("undisturbed", inf)
        while self.kills < kills:
            self._compare(expected, await self._live(f"run {len(self.runs)}", _LONGEST))
        self.faults += [fault for run in self.runs for fault in run.faults]

    async def _live(self, name: str, longest_life: float) -> Results:
        """Run all lives of a server, and return what its jobs have made in the end."""
        folder = self.folder / name
        folder.mkdir()
        run = JobLives(folder, self.options, self.random, longest_life=longest_life, method=self.method)
        self.runs.append(run)
        while run.results is None:
            with suppress(ClientError):
                await run.live(kill=True)
        return run.results

    def _compare(self, expected: Results, results: Results) -> None:
        for what in ("answers", "states"):
            wanted, found = getattr(expected, what), getattr(results, what)
            other = [key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key)]
            self.compared += len(wanted)
            if other:
                self.faults.append(f"run {len(self.runs) - 1}: {len(other)} {what} are other ones: {sorted(other)[:5]}")

    def row(self) -> Row:
        """Return the campaign's row for the table of docs/reliability.md."""
        resumed = sum(run.resumed for run in self.runs)
        return Row(
            f"SIGKILL of a server at random moments of a batch and a fine-tuning job, method {self.method}",
            f"{self.kills} kills in {len(self.runs) - 1} runs; training went on from a checkpoint {resumed} times",
            f"{len(self.faults)} faults: lines lost or twice, steps lost or twice, files or processes left over",
            f"{self.compared} answers and results, all as in a run that was not disturbed",
            self.runs[0].device,
        )
