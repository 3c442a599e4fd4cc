"""`python -m tools.reliability.cancellations`: 200 requests of 10,000 tokens, cancelled after half a second.

What follows `--` goes to `rnn-engine serve`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import click
from aiohttp import ClientSession

from tools.live_server.facts import device_of, metric
from tools.reliability.clients import CLIENTS, LONG, PATH, request_body, wait_for, with_server
from tools.reliability.table import Row, command_line, finish, record_option, where

_SECONDS = 0.5
_MOST_STEPS = 2  # that may end between the last request's end and the answer that all slots are free


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    device: str
    running: float  # requests when they were cancelled
    seconds: float  # until all slots were free
    steps: float  # that ended meanwhile, after the server had noticed the last client's end
    answered: bool  # whether the next request was

    @property
    def good(self) -> bool:
        return self.answered and self.steps <= _MOST_STEPS


async def cancel_all(url: str, session: ClientSession) -> Outcome:
    """Send all requests, cancel them, and see what is left."""
    calls = [asyncio.create_task(_ask(url, session, number, LONG)) for number in range(CLIENTS)]
    await wait_for(session, url, lambda health: health["requests"] == CLIENTS)
    await asyncio.sleep(_SECONDS)
    running = await metric(session, url, "rnn_engine_slots_in_use")
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    noticed = await wait_for(session, url, lambda health: health["requests"] == 0)
    before = await metric(session, url, "rnn_engine_steps_total")
    freed = await wait_for(session, url, lambda health: health["active"] == health["queued"] == 0)
    steps = await metric(session, url, "rnn_engine_steps_total") - before
    answered = await _ask(url, session, 0, 5) == 5
    return Outcome(await device_of(session, url), running, noticed + freed, steps, answered)


async def _ask(url: str, session: ClientSession, number: int, max_tokens: int) -> int:
    async with session.post(url + PATH, json=request_body(number, max_tokens)) as response:
        response.raise_for_status()
        return int((await response.json())["usage"]["completion_tokens"])


@click.command(context_settings={"ignore_unknown_options": True})
@record_option
@click.argument("serve_options", nargs=-1, type=click.UNPROCESSED)
def main(save: bool, serve_options: tuple[str, ...]) -> None:
    """Cancel 200 long requests, and tell when their slots are free."""
    outcome = with_server(serve_options, cancel_all)
    row = Row(
        f"requests of {LONG:,} tokens, cancelled after {_SECONDS} s",
        f"{CLIENTS} at once, {outcome.running:g} of them running",
        "0" if outcome.good else "slots, or the next answer",
        f"all slots free {1e3 * outcome.seconds:.0f} ms after, and within {outcome.steps:g} steps of the last end",
        where(outcome.device),
        command_line("tools.reliability.cancellations"),
    )
    finish(row, save=save, good=outcome.good)


if __name__ == "__main__":
    main()
