"""`python -m tools.soak.attacks`: run hostile clients in turns, and time /health and short chats beside them.

Each attack runs in a process of its own, against a server with two API keys: one attacks, the other chats. Arguments
after `--` go to `rnn-engine serve`. To add an attack, write a coroutine for one of its clients and add it to `ATTACKS`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import psutil
from aiohttp import ClientError, ClientSession, FormData

from tools.live_server.asking import SMALL_WINDOW, ask, connection, encode_request, patient_session
from tools.live_server.caller import CHAT
from tools.live_server.process import ServerProcess, write_keys

MOST_HEALTH_SECONDS = 0.3
MOST_CHAT_RATIO = 3.0  # the slowest chat beside an attack, by the slowest without one
KEY, _OTHER_KEY = "key-of-the-attacking-client-" + 16 * "a", "key-of-the-other-client-" + 16 * "b"
_SHORT_CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8}
_PAUSE = 0.05  # seconds between two probes
_SETTLE_SECONDS = 3.0  # after an attack


@dataclass(frozen=True, slots=True)
class Attack:
    """A number of clients that all do the same, again and again."""

    what: str
    clients: int
    run: Callable[[str], Coroutine[Any, Any, None]]  # called with the server's URL


@dataclass(frozen=True, slots=True)
class Worst:
    """The longest times beside an attack, in seconds, and how much the server's memory grew, in bytes."""

    health: float
    chat: float
    growth: int

    def __str__(self) -> str:
        return f"{self.health * 1000:11.0f} ms {self.chat * 1000:8.0f} ms {self.growth / 1e6:6.0f} MB"


@cache
def _compressed(byte: bytes, count: int) -> bytes:
    return gzip.compress(byte * count)


async def _gzip_without_key(url: str) -> None:
    """Send zeros in gzip, which no key admits, at 46 kB/s."""
    piece = _compressed(bytes(1), 45_000_000)
    async with connection(url) as (_, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(9):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(1)


async def _form_with_preamble(url: str) -> None:
    """Upload a form with millions of lines before its first boundary."""
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": "gzip"}
    await _post(url, "/v1/files", _compressed(b"\n", 5_000_000), headers)
    await asyncio.sleep(0.1)


async def _slow_reader(url: str) -> None:
    """Ask for the OpenAPI document, and read none of it."""
    async with connection(url, receive_bytes=SMALL_WINDOW) as (_, writer):
        writer.write(encode_request("GET", "/openapi.json"))
        await asyncio.sleep(60)


async def _long_chat(url: str) -> None:
    messages = [{"role": ("user", "assistant")[number % 2], "content": f"Line {number}."} for number in range(8000)]
    await _post(url, CHAT, json.dumps({"messages": messages, "max_tokens": 1}).encode())


async def _many_embeddings(url: str) -> None:
    await _post(url, "/v1/embeddings", json.dumps({"input": [f"Line {number}." for number in range(2048)]}).encode())


async def _batch_of_long_prompts(url: str) -> None:
    """Run a batch of 40 lines, each with a prompt of 1.8 MB."""
    body = {"prompt": "all work and no play " * 86_000, "max_tokens": 1}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    data = "\n".join(json.dumps({**line, "custom_id": str(number)}) for number in range(40))
    async with patient_session(KEY) as session:
        form = FormData({"purpose": "batch"})
        form.add_field("file", BytesIO(data.encode()), filename="a.jsonl")
        async with session.post(f"{url}/v1/files", data=form) as response:
            file_id = (await response.json())["id"]
        wanted = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        async with session.post(f"{url}/v1/batches", json=wanted) as response:
            batch_id = (await response.json())["id"]
        await asyncio.sleep(20)
        async with session.post(f"{url}/v1/batches/{batch_id}/cancel") as response:
            await response.read()


async def _leaver(url: str) -> None:
    """Add a document of 3.8 MB to a collection, and leave before the answer."""
    async with patient_session(KEY) as session:
        async with session.post(f"{url}/v1/collections", json={"name": "c"}) as response:
            await response.read()
        body = json.dumps({"documents": ["all work " * 420_000]}).encode()
        adding = session.post(f"{url}/v1/collections/c/documents", data=BytesIO(body))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3), adding as response:
                await response.read()


async def _post(url: str, path: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
    async with patient_session(KEY) as session, session.post(url + path, data=data, headers=headers) as response:
        await response.read()


ATTACKS = {
    "gzip": Attack("bodies in gzip without a key, 370 kB/s in all", 8, _gzip_without_key),
    "preamble": Attack("forms with 5 million lines before the first boundary", 1, _form_with_preamble),
    "readers": Attack("readers of /openapi.json that stall", 200, _slow_reader),
    "messages": Attack("chats of 8,000 messages", 12, _long_chat),
    "batch": Attack("batch of 40 prompts of 1.8 MB", 1, _batch_of_long_prompts),
    "leavers": Attack("adders of 3.8 MB to a collection who leave", 12, _leaver),
    "inputs": Attack("embeddings of 2,048 inputs", 2, _many_embeddings),
}


def _attack(name: str, url: str) -> None:
    """Run an attack until this process is ended."""
    attack = ATTACKS[name]

    async def client() -> None:
        while True:
            with suppress(ClientError, ConnectionError):
                await attack.run(url)

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(attack.clients)))

    asyncio.run(clients())


async def _watch(server: ServerProcess, seconds: float) -> Worst:
    """Probe the server for `seconds`, and return the worst of it."""
    process = psutil.Process(server.pid)
    end = time.monotonic() + seconds
    health, chat, memory = [0.0], [0.0], [process.memory_info().rss]

    async def ask_health(session: ClientSession) -> None:
        async with session.get(f"{server.url}/health") as response:
            await response.read()
        memory.append(process.memory_info().rss)

    async def ask_chat(session: ClientSession) -> None:
        answer = await ask(session, server.url + CHAT, _SHORT_CHAT)
        if answer.error is not None:
            raise click.ClickException(f"a chat was refused: {answer.error}")

    async def probe(asked: Callable[[ClientSession], Coroutine[Any, Any, None]], times: list[float]) -> None:
        while time.monotonic() < end:
            begun = time.perf_counter()
            await asked(session)
            times.append(time.perf_counter() - begun)
            await asyncio.sleep(_PAUSE)

    async with patient_session(_OTHER_KEY) as session:
        await asyncio.gather(probe(ask_health, health), probe(ask_chat, chat))
    return Worst(max(health), max(chat), max(memory) - memory[0])


@click.command()
@click.option("--seconds", default=10.0, show_default=True, help="How long each attack runs.")
@click.option(
    "--attack", "names", multiple=True, type=click.Choice(list(ATTACKS)), help="Which to run.  [default: all]"
)
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(seconds: float, names: tuple[str, ...], serve_options: tuple[str, ...]) -> None:
    """Run the attacks, and print the worst times of /health and of another client's chat beside each."""
    exit_status = 0
    with tempfile.TemporaryDirectory() as folder:
        keys = write_keys(Path(folder), {"one:manage": KEY, "two:manage": _OTHER_KEY})
        with ServerProcess(("--api-key-file", keys, *serve_options)) as server:
            asyncio.run(_watch(server, _SETTLE_SECONDS))
            alone = asyncio.run(_watch(server, seconds))
            click.echo(f"{'worst /health':>14} {'worst chat':>11} {'memory':>9}  beside\n{alone}  nothing")
            for name in names or ATTACKS:
                child = get_context("spawn").Process(target=_attack, args=(name, server.url), daemon=True)
                child.start()
                try:
                    time.sleep(1.0)
                    worst = asyncio.run(_watch(server, seconds))
                finally:
                    child.kill()
                    child.join()
                held = worst.health < MOST_HEALTH_SECONDS and worst.chat < MOST_CHAT_RATIO * alone.chat
                what = f"{ATTACKS[name].clients} {ATTACKS[name].what}"
                click.echo(f"{worst}  {what}{'' if held else ': TOO SLOW'}")
                exit_status |= not held
                asyncio.run(_watch(server, _SETTLE_SECONDS))
    sys.exit(exit_status)


if __name__ == "__main__":
    main()
