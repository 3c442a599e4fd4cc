"""`python -m tools.soak`: send mixed traffic of two API keys for a chosen time; print what grew, slowed down or failed.

Arguments after `--` go to `rnn-engine serve`: python -m tools.soak --minutes 120 -- --device cpu
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import IO

import click

from tools.live_server.asking import device_of, patient_session
from tools.live_server.process import ServerProcess
from tools.reliability_table import command_line, finish, where
from tools.soak.measure import Driver, Record, Sample, Sampler, Verdict, growth
from tools.soak.operations import make_operations

_SMALL_CACHE = ("--cache-device-bytes", "1M", "--cache-host-bytes", "2M", "--cache-disk-bytes", "8M")
_KEY_NAMES = ("one", "two")
_SECONDS_TO_SETTLE = 5.0  # after the last operation, in which the server notices clients that have left
_MOST_AT_ONCE = 32
_INTERVAL = 60.0  # seconds between samples


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--minutes", type=click.FloatRange(min=0.01), default=120.0, show_default=True, help="How long to send traffic."
)
@click.option("--rate", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Operations a second.")
@click.option("--seed", default=0, show_default=True, help="Decides the operations and their order.")
@click.option(
    "--warm-up",
    type=float,
    help="Minutes before memory is compared.  [default: 10, or a third of --minutes if that is less]",
)
@click.option("--url", help="Use the server at this URL.  [default: start one, with caches that fill soon]")
@click.option("--pid", type=int, help="The process id of the server at --url, if it runs on this machine.")
@click.option(
    "--api-key", "api_keys", multiple=True, help="API keys of the server at --url, used in turns.  [default: none]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), default="soak.jsonl", show_default=True, help="File for the samples."
)
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(
    minutes: float,
    rate: float,
    seed: int,
    warm_up: float | None,
    url: str | None,
    pid: int | None,
    api_keys: tuple[str, ...],
    out: Path,
    serve_options: tuple[str, ...],
) -> None:
    """Send mixed traffic to a server, half of it with each API key, and report if it grew, slowed down or failed."""
    seconds = 60 * minutes
    warm_up_seconds = 60 * (min(10.0, minutes / 3) if warm_up is None else warm_up)
    plan = partial(_soak, rate=rate, seed=seed, seconds=seconds)
    exit_status = None
    with tempfile.TemporaryDirectory() as folder, out.open("w") as file:
        if url is not None:
            samples, left, happened, device = asyncio.run(plan(url, pid, file, api_keys or (None,)))
        else:
            folders = ("--cache-folder", f"{folder}/cache", "--state-folder", f"{folder}/states")
            keys = [secrets.token_urlsafe(32) for _ in _KEY_NAMES]
            key_file = Path(folder) / "keys"
            key_file.touch(mode=0o600)
            key_file.write_text("".join(f"{name}:admin {key}\n" for name, key in zip(_KEY_NAMES, keys, strict=True)))
            options = (*_SMALL_CACHE, *folders, "--api-key-file", str(key_file), *serve_options)
            with ServerProcess(options, log=out.with_suffix(".log")) as server:
                samples, left, happened, device = asyncio.run(plan(server.url, server.pid, file, keys))
                exit_status = server.stop()
    verdict = Verdict(samples, happened, left, growth(samples, warm_up_seconds), exit_status)
    click.echo(f"{minutes:g} minutes at {rate:g} operations a second, seed {seed}, serve {' '.join(serve_options)}")
    click.echo("\n".join(verdict.lines()))
    finish(verdict.row(minutes, where(device), command_line("tools.soak")), list(verdict.faults()))


async def _soak(
    url: str, pid: int | None, out: IO[str], keys: Sequence[str | None], *, rate: float, seed: int, seconds: float
) -> tuple[list[Sample], Sample, Record, str]:
    """Run the traffic. Return the samples, a last one after all operations, their record, and the device's name."""
    samples: list[Sample] = []
    record = Record()
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(patient_session(key)) for key in keys]
        drivers = [
            Driver(session, url, make_operations(), rate / len(keys), seed + number, _MOST_AT_ONCE // len(keys), record)
            for number, session in enumerate(sessions)
        ]
        interval = min(_INTERVAL, seconds / 20)
        sampler = Sampler(sessions[0], url, pid, interval, out, lambda: (record.done.total(), record.num_surprises))
        sampling = asyncio.create_task(sampler.run(samples))
        await asyncio.gather(*(driver.run(seconds) for driver in drivers))
        sampling.cancel()
        await asyncio.sleep(_SECONDS_TO_SETTLE)
        return samples, await sampler.take(seconds), record, await device_of(sessions[0], url)


if __name__ == "__main__":
    main()
