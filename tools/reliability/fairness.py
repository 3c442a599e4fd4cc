"""`python -m tools.reliability.fairness`: time one API key's short answers, alone and beside another key's long ones.

Arguments after `--` go to `rnn-engine serve`.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from aiohttp import ClientSession

from server.auth.keys import ApiKey, Scope
from tools.live_server.asking import ask, device_of, metric, patient_session
from tools.live_server.caller import TEXT
from tools.live_server.process import ServerProcess
from tools.reliability.table import Row, command_line, finish, record_option, where

_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.005
_LOUD = 80  # requests at once
_LONG = 5000  # tokens of each of them
_SHORT = 24  # tokens of a short answer
_SLOTS, _QUEUED = 8, 64  # fewer places than these requests want
_AGAIN_SECONDS = 0.2  # between two attempts of one that was refused
_APART_SECONDS = 0.1  # between two short answers
_TIMES = 20  # that the quiet key asks
_MOST = 3.0  # times as long as alone
_KEYS = {name: f"key-{name}" for name in ("loud", "quiet")}


@dataclass(frozen=True, slots=True)
class Waits:
    """The latencies of the quiet key's requests, which are few and short, and the number of rejected ones."""

    first: Sequence[float]  # until the first token
    whole: Sequence[float]  # until the end
    refused: int

    def median(self) -> tuple[float, float]:
        """Return two medians in seconds: of the time to the first token, and of the time to the end of the answer."""
        return statistics.median(self.first), statistics.median(self.whole)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the test: the quiet key's latencies alone and beside the loud key, and the server's load."""

    device: str
    alone: Waits
    beside: Waits
    running: float  # requests of the other key when the quiet one began, as the next
    waiting: float
    suspensions: float
    ended: int  # requests of the other key that were ended or refused

    @property
    def ratios(self) -> tuple[float, float]:
        """The quiet key's median latencies beside the loud key, divided by those alone.

        The first ratio is of the times to the first token, the second of the times to the end of the answer.
        """
        first, whole = (beside / alone for beside, alone in zip(self.beside.median(), self.alone.median(), strict=True))
        return first, whole

    def faults(self) -> list[str]:
        """Return a description of each result that breaks a limit."""
        slow = max(self.ratios) > _MOST
        return [f"more than {_MOST:g} times as long as alone"] * slow + [
            f"{count} {what}" for count, what in ((self.beside.refused, "refused"), (self.ended, "ended")) if count
        ]


async def measure(url: str) -> Outcome:
    """Run the test: time the quiet key's requests alone, then beside the loud key's, and return the results."""
    async with patient_session(_KEYS["quiet"]) as session, patient_session(_KEYS["loud"]) as other:
        await _ask_often(url, session, 3)
        alone = await _ask_often(url, session, _TIMES)
        loud = [asyncio.create_task(_ask_long(url, other, number)) for number in range(_LOUD)]
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
    """Send a request for a long text, and repeat it as long as the server rejects it with status 429."""
    while (await ask(session, url + TEXT, _request_body(number, _LONG))).status == 429:
        await asyncio.sleep(_AGAIN_SECONDS)


async def _ask_often(url: str, session: ClientSession, times: int) -> Waits:
    """Send `times` requests for short texts in sequence, with short pauses, and return their latencies.

    Counts those rejected by a full queue. Raises RuntimeError for other errors.
    """
    answers = []
    for number in range(times):
        await asyncio.sleep(_APART_SECONDS)
        answer = await ask(session, url + TEXT, _request_body(number, _SHORT, stream=True))
        if answer.status != 429:
            if answer.error is not None:
                raise RuntimeError(f"{answer.status}: {answer.error}")
            answers.append(answer)
    first, whole = [answer.first for answer in answers], [answer.whole for answer in answers]
    return Waits(first or [float("inf")], whole or [float("inf")], times - len(answers))


def _request_body(number: int, max_tokens: int, **fields: object) -> Mapping[str, object]:
    """Return a request body for exactly `max_tokens` tokens: a bias excludes token 0, which would end the text."""
    return {"prompt": f"Client {number}:", "max_tokens": max_tokens, "logit_bias": {"0": -1000}, **fields}


async def _wait_for(session: ClientSession, url: str, reached: Callable[[Mapping[str, int]], bool]) -> None:
    """Poll the server's /health until `reached` returns True for its body.

    Raises TimeoutError if that takes too long.
    """
    async with asyncio.timeout(_WAIT_SECONDS):
        while True:
            async with session.get(f"{url}/health") as response:
                if reached(await response.json()):
                    return
            await asyncio.sleep(_POLL_SECONDS)


@click.command(context_settings={"ignore_unknown_options": True})
@record_option
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(save: bool, serve_options: tuple[str, ...]) -> None:
    """Ask for short texts with one key, alone and while another one asks for 80 long ones at once."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_text("".join(f"{ApiKey.of(key, name, Scope.USE).line}\n" for name, key in _KEYS.items()))
        options = ("--slots", str(_SLOTS), "--max-queued", str(_QUEUED), "--api-key-file", str(path))
        with ServerProcess((*options, *serve_options)) as server:
            outcome = asyncio.run(measure(server.url))
            if server.stop() != 0:
                raise RuntimeError("the server did not end with 0 at SIGTERM")
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
    finish(row, outcome.faults(), save=save)


if __name__ == "__main__":
    main()
