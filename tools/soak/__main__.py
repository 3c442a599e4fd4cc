"""`python -m tools.soak`: send mixed traffic of two API keys for a chosen time; print what grew, slowed down or failed.

Arguments after `--` go to `rnn-engine serve`: python -m tools.soak --minutes 120 -- --device cpu
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import click

from tools.kill.ledger import Ledger
from tools.live_server.asking import device_of, patient_session
from tools.live_server.process import ServerProcess, write_keys
from tools.reliability_table import finish
from tools.soak.measure import Driver, Record, Sample, Sampler, Verdict
from tools.soak.operations import make_operations

_SMALL_CACHE = ("--cache-device-bytes", "1M", "--cache-host-bytes", "2M", "--cache-disk-bytes", "8M")
_KEYS = {name: secrets.token_urlsafe(32) for name in ("one:admin", "two:admin")}
_SECONDS_TO_SETTLE = 5.0  # after the last operation, in which the server notices clients that have left
_MOST_AT_ONCE = 16  # operations of each key
_INTERVAL = 60.0  # seconds between samples
_WARM_UP = 10.0  # minutes before memory is compared, or a third of the time if that is less


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--minutes", type=click.FloatRange(min=0.01), default=120.0, show_default=True, help="How long to send traffic."
)
@click.option("--rate", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Operations a second.")
@click.option("--seed", default=0, show_default=True, help="Decides the operations and their order.")
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(minutes: float, rate: float, seed: int, serve_options: Sequence[str]) -> None:
    """Send mixed traffic to a server, half of it with each API key, and report if it grew, slowed down or failed."""
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        folders = ("--cache-folder", f"{folder}/cache", "--state-folder", f"{folder}/states")
        keys = ("--api-key-file", write_keys(Path(folder), _KEYS))
        with ServerProcess((*_SMALL_CACHE, *folders, *keys, *serve_options), log=Path("soak.log")) as server:
            samples, device = asyncio.run(_soak(server, record, rate, seed, 60 * minutes))
            exit_status = server.stop()
    verdict = Verdict(samples, record, 60 * min(_WARM_UP, minutes / 3), exit_status)
    click.echo("\n".join(verdict.lines()))
    finish(verdict.row(minutes, device), list(verdict.faults()))


async def _soak(
    server: ServerProcess, record: Record, rate: float, seed: int, seconds: float
) -> tuple[list[Sample], str]:
    """Run the traffic. Return the samples, the last one from after all operations, and the device's name."""
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(patient_session(key)) for key in _KEYS.values()]
        drivers = []
        for number, session in enumerate(sessions):
            ledger = Ledger()
            operations = make_operations(ledger)
            driver = Driver(session, server.url, operations, ledger, rate / 2, seed + number, _MOST_AT_ONCE, record)
            drivers.append(driver)
        sampler = Sampler(sessions[0], server.url, server.pid)
        sampling = asyncio.create_task(sampler.run(min(_INTERVAL, seconds / 20)))
        await asyncio.gather(*(driver.run(seconds) for driver in drivers))
        sampling.cancel()
        await asyncio.sleep(_SECONDS_TO_SETTLE)
        samples = [*sampler.samples, await sampler.take(seconds)]
    return samples, await device_of(server.url, _KEYS["one:admin"])


if __name__ == "__main__":
    main()
