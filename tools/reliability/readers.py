"""`python -m tools.reliability.readers`: 200 streams, of which half stall, a quarter disappear and the rest are read.

The rest must get all their tokens, as quickly as where all 200 are read. What follows `--` goes to `rnn-engine serve`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random

import click
from aiohttp import ClientSession

from tools.live_server.facts import device_of
from tools.live_server.raw import SMALL_WINDOW, connection, encode_request
from tools.reliability.clients import CLIENTS, LONG, PATH, request_body, wait_for, with_server
from tools.reliability.table import Row, command_line, finish, record_option, where

_STALLED = CLIENTS // 2
_GONE = CLIENTS // 4
_READERS = CLIENTS - _STALLED - _GONE
_TOKENS = 100  # of a reader: enough for the others to join meanwhile
_LEAST_SPEED = 0.9  # of the readers', against all being read


@dataclass(frozen=True, slots=True)
class Reading:
    """One stream that was read to its end."""

    tokens: int
    per_second: float  # from the first token on


async def read_all(url: str, session: ClientSession) -> list[Reading]:
    """Read all streams; return what the readers got, for whom the others do not end before."""
    readers = await _start_readers(url, session)
    others = [asyncio.create_task(_read(url, session, number, LONG)) for number in range(_STALLED + _GONE)]
    try:
        return list(await asyncio.gather(*readers))
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def read_some(url: str, session: ClientSession) -> list[Reading]:
    """Let half of the clients stall and a quarter disappear; return what the readers got."""
    random = Random(0)
    readers = await _start_readers(url, session)
    async with AsyncExitStack() as stalled, asyncio.TaskGroup() as leaving:
        for number in range(_STALLED):
            _, writer = await stalled.enter_async_context(connection(url, receive_bytes=SMALL_WINDOW))
            writer.write(encode_request("POST", PATH, request_body(number, LONG, stream=True)))
        for number in range(_STALLED, _STALLED + _GONE):
            leaving.create_task(_disappear(url, number, random.uniform(0, 5)))
        return list(await asyncio.gather(*readers))


async def _start_readers(url: str, session: ClientSession) -> list[asyncio.Task[Reading]]:
    """Return the readers' tasks once all of them are running, so that each has a slot."""
    numbers = range(CLIENTS - _READERS, CLIENTS)
    readers = [asyncio.create_task(_read(url, session, number, _TOKENS)) for number in numbers]
    await wait_for(session, url, lambda health: health["active"] == _READERS)
    return readers


async def _disappear(url: str, number: int, seconds: float) -> None:
    async with connection(url) as (_, writer):
        writer.write(encode_request("POST", PATH, request_body(number, LONG, stream=True)))
        await asyncio.sleep(seconds)


async def _read(url: str, session: ClientSession, number: int, max_tokens: int) -> Reading:
    body = request_body(number, max_tokens, stream=True, return_token_ids=True)
    tokens, first, begun, last = 0, 0, 0.0, 0.0
    async with session.post(url + PATH, json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                last = time.monotonic()
                choices = json.loads(line.removeprefix(b"data: ")).get("choices", [])
                tokens += sum(len(choice.get("token_ids", [])) for choice in choices)
                if begun == 0.0 and tokens > 0:
                    begun, first = last, tokens
    return Reading(tokens, (tokens - first) / max(last - begun, 1e-9))


async def compare(url: str, session: ClientSession) -> tuple[list[Reading], list[Reading], str]:
    """Return the readers' streams where all are read, those where some are, and the device."""
    usual = await read_all(url, session)
    await wait_for(session, url, lambda health: health["active"] == health["queued"] == 0)
    return usual, await read_some(url, session), await device_of(session, url)


@click.command(context_settings={"ignore_unknown_options": True})
@record_option
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(save: bool, serve_options: tuple[str, ...]) -> None:
    """Read a quarter of 200 streams, and compare their speed with that where all are read."""
    usual, some, device = with_server(serve_options, compare)
    before, after = (statistics.median(reading.per_second for reading in readings) for readings in (usual, some))
    lost = sum(_TOKENS - reading.tokens for reading in some)
    row = Row(
        f"streams, of which {_STALLED} stall, {_GONE} disappear and {_READERS} are read",
        f"{CLIENTS} at once",
        f"{lost} of {_READERS * _TOKENS:,} tokens",
        f"{after:.1f} tokens a second for a reader; {before:.1f} where all {CLIENTS} are read",
        where(device),
        command_line("tools.reliability.readers"),
    )
    finish(row, save=save, good=lost == 0 and after >= _LEAST_SPEED * before)


if __name__ == "__main__":
    main()
