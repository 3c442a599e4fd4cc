"""`python -m tools.reliability.fairness`: time the short answers to one key, alone and beside another key's long ones.

Arguments after `--` go to `rnn-engine serve`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from aiohttp import ClientSession, ClientTimeout, TCPConnector

from server.auth.keys import ApiKey, Scope
from tools.live_server.facts import device_of, metric
from tools.live_server.process import ServerProcess
from tools.reliability.table import Row, command_line, finish, record_option, where

_PATH = "/v1/completions"
_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.005
_LOUD = 80  # requests at once
_LONG = 5000  # tokens of each of them
_SHORT = 24  # tokens of a short answer
_SLOTS, _QUEUED = 8, 64  # together fewer than the requests of the loud key
_AGAIN_SECONDS = 0.2  # between two attempts of a refused request
_APART_SECONDS = 0.1  # between two short answers
_TIMES = 20  # requests of the quiet key
_MOST = 3.0  # the greatest allowed ratio of the times beside the loud key and alone
_KEYS = {name: f"key-{name}" for name in ("loud", "quiet")}


@dataclass(frozen=True, slots=True)
class Waits:
    """The latencies of the quiet key's requests, in seconds."""

    first: Sequence[float]  # until the first token
    whole: Sequence[float]  # until the end
    refused: int

    def median(self) -> tuple[float, float]:
        """Return the medians for the first token and for the whole answer."""
        return statistics.median(self.first), statistics.median(self.whole)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a measurement."""

    device: str
    alone: Waits
    beside: Waits
    running: float  # requests of the loud key in slots when the quiet key's requests beside them began
    waiting: float  # requests of the loud key in the queue at that time
    suspensions: float
    ended: int  # requests of the loud key that ended or failed before the quiet key's last answer

    @property
    def ratios(self) -> tuple[float, float]:
        """The ratios of the times beside the loud key and alone, for the first token and the whole answer."""
        first, whole = (beside / alone for beside, alone in zip(self.beside.median(), self.alone.median(), strict=True))
        return first, whole

    @property
    def good(self) -> bool:
        return max(self.ratios) <= _MOST and self.beside.refused == 0 == self.ended


def _headers(name: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {_KEYS[name]}"}


async def measure(url: str, session: ClientSession) -> Outcome:
    """Send the requests of the quiet key alone, and then beside those of the loud key."""
    await _ask_often(url, session, 3)
    alone = await _ask_often(url, session, _TIMES)
    loud = [asyncio.create_task(_ask_long(url, session, number)) for number in range(_LOUD)]
    await _wait_for(session, url, lambda health: health["active"] + health["queued"] >= _SLOTS + _QUEUED)
    await _wait_for(session, url, lambda health: health["active"] == _SLOTS)
    running = await metric(session, url, "rnn_engine_slots_in_use")
    waiting = await metric(session, url, "rnn_engine_queued_requests")
    beside = await _ask_often(url, session, _TIMES)
    suspensions = await metric(session, url, "rnn_engine_suspensions_total")
    ended = sum(call.done() for call in loud)
    for call in loud:
        call.cancel()
    await asyncio.gather(*loud, return_exceptions=True)
    return Outcome(await device_of(session, url), alone, beside, running, waiting, suspensions, ended)


async def _ask_long(url: str, session: ClientSession, number: int) -> None:
    """Ask for a long text, and try again while the request is refused for lack of room."""
    body = _request_body(number, _LONG)
    while True:
        async with session.post(url + _PATH, json=body, headers=_headers("loud")) as response:
            if response.status != 429:
                response.raise_for_status()
                return
            await response.read()
        await asyncio.sleep(_AGAIN_SECONDS)


async def _ask_often(url: str, session: ClientSession, times: int) -> Waits:
    """Ask for short texts one after the other, with a short pause before each."""
    first: list[float] = []
    whole: list[float] = []
    refused = 0
    for number in range(times):
        await asyncio.sleep(_APART_SECONDS)
        begun = time.monotonic()
        body = _request_body(number, _SHORT, stream=True)
        async with session.post(url + _PATH, json=body, headers=_headers("quiet")) as response:
            if response.status == 429:
                refused += 1
                continue
            response.raise_for_status()
            await response.content.readline()
            first.append(time.monotonic() - begun)
            await response.read()
            whole.append(time.monotonic() - begun)
    return Waits(first or [float("inf")], whole or [float("inf")], refused)


def _request_body(number: int, max_tokens: int, **fields: object) -> Mapping[str, object]:
    """Return a request that ends at `max_tokens` and not before: its bias excludes token 0, which ends a text."""
    return {"prompt": f"Client {number}:", "max_tokens": max_tokens, "logit_bias": {"0": -1000}, **fields}


async def _wait_for(session: ClientSession, url: str, reached: Callable[[Mapping[str, int]], bool]) -> float:
    """Poll /health until `reached` is True of it, and return the seconds that took. Raises TimeoutError."""
    begun = time.monotonic()
    async with asyncio.timeout(_WAIT_SECONDS):
        while True:
            async with session.get(f"{url}/health") as response:
                if reached(await response.json()):
                    return time.monotonic() - begun
            await asyncio.sleep(_POLL_SECONDS)


async def _measure_in_session(url: str) -> Outcome:
    async with ClientSession(
        connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None), headers=_headers("quiet")
    ) as session:
        return await measure(url, session)


@click.command(context_settings={"ignore_unknown_options": True})
@record_option
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(save: bool, serve_options: tuple[str, ...]) -> None:
    """Ask for short texts with one key, alone and while another one asks for 80 long ones at once."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_text("".join(f"{ApiKey.of(key, name, Scope.USE).line}\n" for name, key in _KEYS.items()))
        options = ("--slots", str(_SLOTS), "--max-queued", str(_QUEUED), "--api-key-file", str(path))
        with ServerProcess(Path(folder) / "log", (*options, *serve_options)) as server:
            outcome = asyncio.run(_measure_in_session(server.url))
            if server.stop() != 0:
                raise RuntimeError("the server did not exit with status 0 after SIGTERM")
    alone, beside, ratios = outcome.alone.median(), outcome.beside.median(), outcome.ratios
    row = Row(
        f"short answers to one key beside {_LOUD} requests of {_LONG:,} tokens of another",
        f"{_TIMES} answers of {_SHORT} tokens, {outcome.running:g} of the others running, {outcome.waiting:g} queued",
        f"{outcome.beside.refused} refused, {outcome.ended} of the others ended",
        f"first tokens after {1e3 * beside[0]:.0f} ms, alone {1e3 * alone[0]:.0f} ms ({ratios[0]:.1f} times); whole "
        f"answers after {1e3 * beside[1]:.0f} ms, alone {1e3 * alone[1]:.0f} ms ({ratios[1]:.1f} times); longest "
        f"{1e3 * max(outcome.beside.first):.0f} and {1e3 * max(outcome.beside.whole):.0f} ms; "
        f"{outcome.suspensions:g} requests suspended",
        where(outcome.device),
        command_line("tools.reliability.fairness"),
    )
    finish(row, save=save, good=outcome.good)


if __name__ == "__main__":
    main()
