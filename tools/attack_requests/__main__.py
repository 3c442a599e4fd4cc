"""Start a server with the demo model for each attack, send it the attack, and print its effects.

The tool prints, for each attack, the answer's status and time, the peak memory of the process, and the longest time
that `/health` and another client's short chat took meanwhile. `--root` starts the server of another checkout, for
comparison. Arguments after `--` go to `rnn-engine serve`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from tools.attack_requests.attacks import ATTACKS, CHAT, KEPT, Attack
from tools.live_server.process import ROOT, ServerProcess
from tools.live_server.raw import connection, encode_request

_SECONDS_STALLED = 5.0
_PEAK = "VmHWM"
_CLOSE = {"Connection": "close"}
_SAMPLE_SECONDS = 0.02
_PIECE_BYTES = 1 << 18
_CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
_TABLE = "| attack | body | answer | seconds | peak memory | longest /health | longest short chat |"


@dataclass(slots=True)
class Outcome:
    status: str = "no answer"
    seconds: float = 0.0
    peak_megabytes: float = 0.0
    health_seconds: list[float] = field(default_factory=list)
    chat_seconds: list[float] = field(default_factory=list)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--root", type=click.Path(path_type=Path, exists=True), default=ROOT, help="The checkout to serve.")
@click.option("--only", default="", help="Run only the attacks whose names contain this text.")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for an answer.")
@click.option(
    "--max-memory", type=int, help="The most virtual memory of the server, in megabytes.  [default: no limit]"
)
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(root: Path, only: str, timeout: float, max_memory: int | None, serve_options: tuple[str, ...]) -> None:
    """Print a table of what each attack does to the server."""
    click.echo(f"{_TABLE}\n|---|---|---|---|---|---|---|")
    for attack in (*ATTACKS, *KEPT):
        if only in attack.name:
            with ServerProcess(serve_options, root=root, max_memory_mb=max_memory) as server:
                click.echo(asyncio.run(_row(server, attack, timeout)))


async def _row(server: ServerProcess, attack: Attack, timeout: float) -> str:
    body = attack.body()
    outcome, before = Outcome(), server.memory_megabytes(_PEAK)
    health, chat = encode_request("GET", "/health", headers=_CLOSE), encode_request("POST", CHAT, _CHAT, _CLOSE)
    await _time(server.url, chat, timeout)  # since the first chat is slower
    attacking = asyncio.create_task(_attack(server.url, attack, body, timeout, outcome))
    watching = asyncio.create_task(_watch_memory(server, outcome))
    async with asyncio.TaskGroup() as asking:
        asking.create_task(_ask(server.url, health, timeout, attacking, outcome.health_seconds))
        asking.create_task(_ask(server.url, chat, timeout, attacking, outcome.chat_seconds))
    await asyncio.sleep(2 * _SAMPLE_SECONDS)
    watching.cancel()
    status = outcome.status if server.running else "the server is gone"
    return (
        f"| {attack.name} | {len(body) / 1e6:.2f} MB | {status} | {outcome.seconds:.2f} | "
        f"{before:.0f} -> {outcome.peak_megabytes:.0f} MB | {max(outcome.health_seconds):.2f} s | "
        f"{max(outcome.chat_seconds):.2f} s |"
    )


async def _ask(url: str, data: bytes, timeout: float, attacking: asyncio.Task[None], seconds: list[float]) -> None:
    """Send the same harmless request again and again until `attacking` is done.

    Append the seconds that each took to `seconds`.
    """
    while True:
        seconds.append(await _time(url, data, timeout))
        if attacking.done():
            return
        await asyncio.sleep(_SAMPLE_SECONDS)


async def _watch_memory(server: ServerProcess, outcome: Outcome) -> None:
    while True:
        outcome.peak_megabytes = max(outcome.peak_megabytes, server.memory_megabytes(_PEAK))
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
    """Send `count` requests in parallel, each without its last byte. Return a text that says how many were rejected."""
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


async def _time(url: str, data: bytes, timeout: float) -> float:
    """Send a request and return the seconds until its whole response has come."""
    begun = time.monotonic()
    with suppress(OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(timeout), connection(url) as (reader, writer):
            writer.write(data)
            await reader.read()
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
