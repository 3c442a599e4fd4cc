"""`python -m tools.bench.jobs`: what batches cost chats, and what they reach by themselves.

`chats` asks a chat each second, alone and beside a batch in turns. `lines` runs the lines of two batches, of chats and
of completions, and the same lines by `LLM`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean, median
from typing import Any

import click
import psutil
from aiohttp import ClientSession, FormData

from rnn_engine import LLM, SamplingParams
from tools.bench.turns import Runs, print_table, rounds_option, take_turns
from tools.live_server.asking import Answer, ask, patient_session
from tools.live_server.caller import CHAT, TEXT, expect, some_words
from tools.live_server.process import CLI, ServerProcess

_SYSTEMS, _SYSTEM_WORDS = 4, 60  # the texts that the lines of a batch begin with
_LINE_WORDS, _LINE_TOKENS = (5, 60), (8, 48)  # least and most, of a question and its answer
_CHAT_WORDS, _CHAT_TOKENS = 40, 32
_POLL_SECONDS = 0.2


def make_lines(url: str, count: int, seed: int = 0) -> list[Mapping[str, object]]:
    """Return the bodies of `count` random requests for `url`, which begin with one of a few texts."""
    random = Random(f"lines {seed} of {url}")
    systems = [some_words(Random(f"system {number}"), _SYSTEM_WORDS) for number in range(_SYSTEMS)]
    bodies: list[Mapping[str, object]] = []
    for _ in range(count):
        system, question = random.choice(systems), some_words(random, random.randint(*_LINE_WORDS))
        body: dict[str, object] = {**_answer_of(random.randint(*_LINE_TOKENS)), "temperature": 0}
        if url == CHAT:
            body["messages"] = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        else:
            body["prompt"] = f"{system}\n\n{question}"
        bodies.append(body)
    return bodies


def _answer_of(num_tokens: int) -> dict[str, object]:
    return {"max_tokens": num_tokens, "min_tokens": num_tokens}


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of one API key of a server."""

    session: ClientSession
    url: str

    async def begin(self, url: str, bodies: Sequence[Mapping[str, object]]) -> str:
        """Upload the requests `bodies` for the route `url`, begin a batch of them, and return its id."""
        lines = (
            {"custom_id": str(number), "method": "POST", "url": url, "body": body} for number, body in enumerate(bodies)
        )
        form = FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", b"".join(json.dumps(line).encode() + b"\n" for line in lines), filename="lines.jsonl")
        file = await self._call("POST", "/v1/files", data=form)
        body = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
        return str((await self._call("POST", "/v1/batches", json=body))["id"])

    async def get(self, batch_id: str) -> Mapping[str, Any]:
        batch: Mapping[str, Any] = await self._call("GET", f"/v1/batches/{batch_id}")
        return batch

    async def cancel(self, batch_id: str) -> None:
        """Cancel a batch, and wait until it has ended."""
        await self._call("POST", f"/v1/batches/{batch_id}/cancel")
        await self.until_ended(batch_id)

    async def until_ended(self, batch_id: str) -> Mapping[str, Any]:
        """Wait until a batch has ended, and return it. Raises ClickException if it fails."""
        while (batch := await self.get(batch_id))["status"] not in ("completed", "cancelled"):
            if batch["status"] == "failed":
                raise click.ClickException(f"the batch has failed: {batch['errors']}")
            await asyncio.sleep(_POLL_SECONDS)
        return batch

    async def until_running(self, batch_id: str) -> int:
        """Wait until a batch has answered a line, and return how many it has answered."""
        while not (done := await self.completed(batch_id)):
            await asyncio.sleep(_POLL_SECONDS)
        return done

    async def completed(self, batch_id: str) -> int:
        """Return how many lines of a batch have been answered."""
        return int((await self.get(batch_id))["request_counts"]["completed"])

    async def _call(self, method: str, path: str, **content: Any) -> Any:  # noqa: ANN401
        async with self.session.request(method, self.url + path, **content) as response:
            await expect(response, (200,))
            return await response.json()


@click.group()
def main() -> None:
    """Measure batches on a server of the demo model, or of another model or device by its OPTIONS."""


_options = click.argument("options", nargs=-1, type=click.UNPROCESSED)
_UNKNOWN = {"ignore_unknown_options": True}


@main.command(context_settings=_UNKNOWN)
@click.option("--seconds", default=20.0, show_default=True, help="Seconds of each turn in which chats are asked.")
@click.option("--every", default=1.0, show_default=True, help="Seconds between two chats.")
@click.option("--modelled", is_flag=True, help="Start tools.bench.serve, whose steps take a modelled time.")
@rounds_option
@_options
def chats(seconds: float, every: float, modelled: bool, rounds: int, options: Sequence[str]) -> None:
    """Measure chats alone and beside a batch, in turns, and the speed of the batch with and without chats."""
    with ServerProcess(options, command=("tools.bench.serve",) if modelled else (CLI, "serve")) as server:
        print_table(asyncio.run(_measure_chats(server.url, seconds, every, rounds)))


async def _measure_chats(url: str, seconds: float, every: float, rounds: int) -> dict[str, Runs]:
    found: dict[str, list[dict[str, float]]] = {"alone": [], "beside a batch": []}
    async with patient_session() as session:
        batches = Batches(session, url)
        bodies = make_lines(CHAT, 20_000)
        await _ask_chats(session, url, 3.0, every, seed=-1)  # what is made at the first use
        for number in range(rounds):
            click.echo(f"round {number + 1} of {rounds}", err=True)
            answers, _ = await _ask_chats(session, url, seconds, every, seed=2 * number)
            found["alone"].append({**_waits(answers), "batch, lines/s": float("nan")})
            batch_id = await batches.begin(CHAT, bodies)
            await batches.until_running(batch_id)
            await asyncio.sleep(2.0)
            before = await batches.completed(batch_id)
            answers, took = await _ask_chats(session, url, seconds, every, seed=2 * number + 1)
            speed = (await batches.completed(batch_id) - before) / took
            found["beside a batch"].append({**_waits(answers), "batch, lines/s": speed})
            await batches.cancel(batch_id)
    return {side: {name: [run[name] for run in runs] for name in runs[0]} for side, runs in found.items()}


async def _ask_chats(
    session: ClientSession, url: str, seconds: float, every: float, seed: int
) -> tuple[list[Answer], float]:
    """Ask a chat each `every` seconds. Return the answers, and after how many seconds all were there."""
    random, begun = Random(f"chats {seed}"), time.perf_counter()
    tasks = []
    while (late := time.perf_counter() - begun) < seconds:
        body = {
            "messages": [{"role": "user", "content": some_words(random, _CHAT_WORDS)}],
            **_answer_of(_CHAT_TOKENS),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        tasks.append(asyncio.create_task(ask(session, url + CHAT, body)))
        await asyncio.sleep(every * len(tasks) - late)
    answers = await asyncio.gather(*tasks)
    if failed := next((answer.error for answer in answers if answer.error is not None), None):
        raise click.ClickException(f"a chat failed: {failed}")
    return answers, time.perf_counter() - begun


def _waits(answers: Sequence[Answer]) -> dict[str, float]:
    firsts = [1e3 * answer.first for answer in answers]
    between = [1e3 * (answer.moments[-1] - answer.moments[0]) / (answer.tokens - 1) for answer in answers]
    return {
        "first token, ms": median(firsts),
        "first token, mean ms": mean(firsts),
        "between tokens, ms": median(between),
        "between tokens, mean ms": mean(between),
        "longest gap, ms": median(1e3 * max(answer.gaps, default=0.0) for answer in answers),
    }


@main.command(context_settings=_UNKNOWN)
@click.option("--count", default=10_000, show_default=True, help="Lines, half of them chats.")
@click.option("--device", default="auto", show_default=True, help="The device of both sides.")
@rounds_option
@_options
def lines(count: int, device: str, rounds: int, options: Sequence[str]) -> None:
    """Measure batches beside `LLM` on the same lines, in the batches' order; OPTIONS are those of the server."""
    bodies = {url: make_lines(url, count // 2) for url in (CHAT, TEXT)}

    def run_batches() -> dict[str, float]:
        with ServerProcess(["--device", device, *options]) as server:
            begun, cpu = time.perf_counter(), server.cpu_seconds()
            num_tokens = asyncio.run(_run_batches(server.url, bodies))
            return _rates(num_tokens, time.perf_counter() - begun, server.cpu_seconds() - cpu)

    print_table(take_turns({"LLM": lambda: _run_llm(bodies, device), "batches": run_batches}, rounds))


async def _run_batches(url: str, bodies: Mapping[str, Sequence[Mapping[str, object]]]) -> int:
    """Run a batch for each route, and return how many tokens they have generated."""
    num_tokens = 0
    async with patient_session() as session:
        batches = Batches(session, url)
        for batch_id in [await batches.begin(route, each) for route, each in bodies.items()]:
            batch = await batches.until_ended(batch_id)
            num_tokens += batch["usage"]["output_tokens"]
    return num_tokens


def _run_llm(bodies: Mapping[str, Sequence[Mapping[str, Any]]], device: str) -> dict[str, float]:
    process, num_tokens = psutil.Process(), 0
    with LLM(device=device) as llm:
        begun, cpu = time.perf_counter(), process.cpu_times()
        for route, each in bodies.items():
            key = "messages" if route == CHAT else "prompt"
            ordered = sorted(each, key=lambda body: json.dumps(body[key]))
            prompts = [body[key] for body in ordered]
            params = [_params(body) for body in ordered]
            run = llm.chat if route == CHAT else llm.generate
            num_tokens += sum(len(done.tokens) for done in run(prompts, params, progress=False))
        now = process.cpu_times()
        return _rates(num_tokens, time.perf_counter() - begun, now.user + now.system - cpu.user - cpu.system)


def _params(body: Mapping[str, Any]) -> SamplingParams:
    return SamplingParams(max_tokens=body["max_tokens"], min_tokens=body["min_tokens"], temperature=0.0)


def _rates(num_tokens: int, seconds: float, cpu: float) -> dict[str, float]:
    return {"tokens": num_tokens, "tok/s": num_tokens / seconds, "tok/CPU s": num_tokens / cpu}


if __name__ == "__main__":
    main()
