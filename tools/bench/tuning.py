"""`python -m tools.bench.tuning`: tune a pirate over HTTP while clients chat, and measure how long they wait.

The clients chat before, during and after the job, with other conversations each time. What the tuned model and the
plain one answer to questions that were not learnt is printed at the end, and for which part of the time the process
that trains was at work while they chatted. On a GPU it sleeps while the device works, so only `--device cpu` shows it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import click
import psutil
from aiohttp import ClientSession, FormData

from tools.bench.load import Clients, Traffic, summarise
from tools.bench.turns import Figures
from tools.demo_model.pirate_data import SEED, plain_dialogues, records
from tools.live_server.asking import patient_session
from tools.live_server.caller import CHAT, expect
from tools.live_server.process import ServerProcess

_JOBS = "/v1/fine_tuning/jobs"
_LOOK_SECONDS = 0.5
_WATCH_SECONDS = 0.01
_SHOWN = 5  # questions whose answers are printed


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--clients", default=4, show_default=True, help="That chat, one conversation after another.")
@click.option("--seconds", default=30.0, show_default=True, help="Before the job, and after it.")
@click.option("--examples", default=300, show_default=True, help="Dialogues to learn.")
@click.option("--epochs", default=3, show_default=True)
@click.option("--questions", default=40, show_default=True, help="That both models are asked at the end.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(clients: int, seconds: float, examples: int, epochs: int, questions: int, options: Sequence[str]) -> None:
    """Measure chats beside a fine-tuning job. OPTIONS go to `rnn-engine serve`, such as --tuning-share."""
    with TemporaryDirectory() as folder, ServerProcess(["--state-folder", folder, *options]) as server:
        asyncio.run(_measure(server, clients, seconds, examples, epochs, questions))
        server.stop()


async def _measure(
    server: ServerProcess, num_clients: int, seconds: float, examples: int, epochs: int, questions: int
) -> None:
    async with patient_session() as session:
        before = await _chat(session, server, num_clients, 0, asyncio.sleep(seconds))
        job = await _begin(session, server.url, examples, epochs)
        begun = time.monotonic()
        looks = list[bool]()
        watching = asyncio.create_task(_watch_training(server.pid, looks))
        during = await _chat(session, server, num_clients, 1, _until_it_ends(session, server.url, job["id"]))
        watching.cancel()
        took = time.monotonic() - begun
        after = await _chat(session, server, num_clients, 2, asyncio.sleep(seconds))
        job = await _get(session, f"{server.url}{_JOBS}/{job['id']}")
        if job["status"] != "succeeded":
            raise click.ClickException(f"the job ended as {job['status']}: {job['error']}")
        click.echo(f"| chats | {' | '.join(before)} |\n|{'---|' * (len(before) + 1)}")
        for name, figures in (("before", before), ("during", during), ("after", after)):
            click.echo(f"| {name} | {' | '.join(f'{value:.3g}' for value in figures.values())} |")
        click.echo(f"the job took {took:.0f} s, and learnt {job['trained_tokens']} tokens: {job['fine_tuned_model']}")
        click.echo(f"its process was at work in {100 * mean(looks):.0f} % of {len(looks)} looks")
        await _compare(session, server.url, job["fine_tuned_model"], questions)


async def _chat(session: ClientSession, server: ServerProcess, count: int, phase: int, ending: Any) -> Figures:  # noqa: ANN401
    """Have clients chat until `ending`, which is awaited, and return the figures of their chats."""
    clients, cpu = Clients(session, server.url, Traffic()), server.cpu_seconds()
    chatting = asyncio.create_task(clients.run_closed(count, math.inf, first_seed=phase * count))
    await ending
    chatting.cancel()
    await asyncio.wait((chatting,))
    return summarise(clients, clients.now, server.cpu_seconds() - cpu)


async def _watch_training(server: int, looks: list[bool]) -> None:
    """Append to `looks` again and again if the process that trains is at work, and not at rest."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        with suppress(psutil.NoSuchProcess):  # it may end between two calls
            for process in psutil.Process(server).children():
                while process.cmdline()[-2:] == ["rnn_engine_server.jobs.tuning_process", "tune"]:
                    looks.append(process.status() != psutil.STATUS_SLEEPING)
                    await asyncio.sleep(_WATCH_SECONDS)


async def _begin(session: ClientSession, url: str, examples: int, epochs: int) -> Any:  # noqa: ANN401
    lines = (json.dumps(record, ensure_ascii=False) for record in itertools.islice(records(SEED), examples))
    form = FormData({"purpose": "fine-tune"})
    form.add_field("file", "\n".join(lines).encode(), filename="pirate.jsonl")
    async with session.post(f"{url}/v1/files", data=form) as response:
        await expect(response, (200,))
        file = await response.json()
    models = await _get(session, f"{url}/v1/models")
    body = {
        "model": models["data"][0]["id"],
        "training_file": file["id"],
        "suffix": "pirate",
        "seed": 0,
        "hyperparameters": {"n_epochs": epochs},
    }
    async with session.post(f"{url}{_JOBS}", json=body) as response:
        await expect(response, (200,))
        return await response.json()


async def _get(session: ClientSession, url: str) -> Any:  # noqa: ANN401
    async with session.get(url) as response:
        await expect(response, (200,))
        return await response.json()


async def _until_it_ends(session: ClientSession, url: str, job_id: str) -> None:
    while (await _get(session, f"{url}{_JOBS}/{job_id}"))["finished_at"] is None:
        await asyncio.sleep(_LOOK_SECONDS)


async def _compare(session: ClientSession, url: str, tuned: str, count: int) -> None:
    """Print what the tuned model and the plain one answer, and how many answers of each are a pirate's."""
    plain = tuned.partition(":")[0]
    pirates = dict.fromkeys((plain, tuned), 0)
    for number, dialogue in enumerate(itertools.islice(plain_dialogues(SEED + 1), count)):
        question = dialogue.messages()[0]
        for model in (plain, tuned):
            body = {"model": model, "messages": [question], "temperature": 0, "max_tokens": 48}
            async with session.post(url + CHAT, json=body) as response:
                await expect(response, (200,))
                answer = (await response.json())["choices"][0]["message"]["content"]
            pirates[model] += answer.startswith("Arr!")
            if number < _SHOWN:
                click.echo(f"{question['content']!r} {model}: {answer!r}")
    for model, number in pirates.items():
        click.echo(f"{model}: {number} of {count} answers begin with 'Arr!'")


if __name__ == "__main__":
    main()
