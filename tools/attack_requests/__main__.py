"""Start a server with the demo model, send it each attack in turn, and print what it took.

For each attack: the answer's status and time, the most memory that the process had, and the longest time that
`/health` took meanwhile. `--root` starts the server of another checkout, to compare.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from tools.attack_requests.attacks import ATTACKS, Attack
from tools.live_server.process import ROOT, ServerProcess
from tools.live_server.raw import connection, encode_request

_SECONDS_STALLED = 5.0
_SAMPLE_SECONDS = 0.02
_PIECE_BYTES = 1 << 18
_TABLE = "| attack | body | answer | seconds | peak memory | longest /health |"


@dataclass(slots=True)
class Outcome:
    status: str = "no answer"
    seconds: float = 0.0
    peak_megabytes: float = 0.0
    health_seconds: list[float] = field(default_factory=list)


@click.command()
@click.option("--root", type=click.Path(path_type=Path, exists=True), default=ROOT, help="The checkout to serve.")
@click.option("--only", default="", help="Run the attacks whose name has this in it.")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for an answer.")
@click.option("--max-memory", type=int, help="Megabytes that the server may have; beyond it is out of memory.")
def main(root: Path, only: str, timeout: float, max_memory: int | None) -> None:
    """Print a table of what each attack does to the server."""
    click.echo(f"{_TABLE}\n|---|---|---|---|---|---|")
    for attack in ATTACKS:
        if only in attack.name:
            with (
                tempfile.TemporaryDirectory() as folder,
                ServerProcess(Path(folder) / "log", root=root, max_memory_mb=max_memory) as server,
            ):
                click.echo(asyncio.run(_row(server, attack, timeout)))


async def _row(server: ServerProcess, attack: Attack, timeout: float) -> str:
    body = attack.body()
    outcome, before = Outcome(), _peak_megabytes(server.pid)
    attacking = asyncio.create_task(_attack(server.url, attack, body, timeout, outcome))
    watching = asyncio.create_task(_watch_memory(server.pid, outcome))
    while not attacking.done():
        outcome.health_seconds.append(await _time_health(server.url, timeout))
        await asyncio.sleep(_SAMPLE_SECONDS)
    await asyncio.sleep(2 * _SAMPLE_SECONDS)
    watching.cancel()
    status = outcome.status if server.running else "the server is gone"
    return (
        f"| {attack.name} | {len(body) / 1e6:.2f} MB | {status} | {outcome.seconds:.2f} | "
        f"{before:.0f} -> {outcome.peak_megabytes:.0f} MB | {max(outcome.health_seconds):.2f} s |"
    )


async def _watch_memory(pid: int, outcome: Outcome) -> None:
    while True:
        outcome.peak_megabytes = max(outcome.peak_megabytes, _peak_megabytes(pid))
        await asyncio.sleep(_SAMPLE_SECONDS)


async def _attack(url: str, attack: Attack, body: bytes, timeout: float, outcome: Outcome) -> None:
    begun = time.monotonic()
    data = encode_request(attack.method, attack.path, body)
    try:
        async with asyncio.timeout(timeout):
            if attack.stalled:
                outcome.status = await _stall(url, data[:-1], attack.stalled)
            else:
                outcome.status = await _send(url, data)
    except (OSError, asyncio.IncompleteReadError) as error:
        outcome.status = type(error).__name__
    outcome.seconds = time.monotonic() - begun


async def _stall(url: str, data: bytes, count: int) -> str:
    """Send so many requests at the same time but for their last byte; return how many were refused."""
    refused = await asyncio.gather(*(_stall_one(url, data) for _ in range(count)))
    return f"{sum(refused)} of {count} refused"


async def _stall_one(url: str, data: bytes) -> bool:
    async with connection(url) as (reader, writer):
        answer = asyncio.create_task(reader.readline())
        for start in range(0, len(data), _PIECE_BYTES):
            writer.write(data[start : start + _PIECE_BYTES])
            sent = asyncio.create_task(writer.drain())
            await asyncio.wait((answer, sent), return_when=asyncio.FIRST_COMPLETED)
            sent.cancel()
            if answer.done():
                return b" 429 " in answer.result()
        await asyncio.wait((answer,), timeout=_SECONDS_STALLED)
        answer.cancel()
        return False


async def _send(url: str, data: bytes) -> str:
    async with connection(url) as (reader, writer):
        writer.write(data)
        line = (await reader.readline()).decode()
        return line.split(" ", 2)[1] if line else "connection closed"


async def _time_health(url: str, timeout: float) -> float:
    begun = time.monotonic()
    with suppress(OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(timeout), connection(url) as (reader, writer):
            writer.write(encode_request("GET", "/health", headers={"Connection": "close"}))
            await reader.readline()
    return time.monotonic() - begun


def _peak_megabytes(pid: int) -> float:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
