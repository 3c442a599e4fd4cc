"""HTTP clients that ask the questions of a plan and time the answers, in a process of their own.

Runs as a script, which imports nothing of the project. It reads a plan as JSON from stdin, and prints the result of
`ask_all` as JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp

MARK = b"~"
"""Each of the server's tokens has one of these; see `tools.bench.host.clients`."""


@dataclass(frozen=True, slots=True)
class Question:
    after: float  # seconds after the previous answer, or after the beginning
    body: dict[str, Any]  # of the route for completions


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer. Its moments are in seconds from the beginning of the plan."""

    asked: float
    first: float  # its first token
    ended: float
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    gaps: list[float] = field(default_factory=list)  # between pieces of its text


async def ask_all(port: int, chains: list[list[Question]], seconds: float) -> list[Answered]:
    """Ask the questions of each chain one after the other, but none later than `seconds`."""
    answers: list[Answered] = []
    url = f"http://127.0.0.1:{port}/v1/completions"
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        begun = time.perf_counter()

        async def run(chain: list[Question]) -> None:
            for question in chain:
                await asyncio.sleep(question.after)
                if time.perf_counter() - begun >= seconds:
                    return
                answers.append(await _ask(session, url, question.body, begun))

        await asyncio.gather(*map(run, chains))
    return answers


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], begun: float) -> Answered:
    """Stream an answer. Raises RuntimeError if the server refuses the request or the answer breaks off."""
    asked, moments, usage = time.perf_counter() - begun, list[float](), None
    full = {**body, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    async with session.post(url, json=full) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        async for line in answer.content:
            if MARK in line:
                moments.append(time.perf_counter() - begun)
            if b'"prompt_tokens"' in line:
                usage = json.loads(line[6:])["usage"]
    if usage is None or not moments:
        raise RuntimeError("an answer broke off")
    return Answered(
        asked,
        moments[0],
        time.perf_counter() - begun,
        usage["completion_tokens"],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        [later - earlier for earlier, later in itertools.pairwise(moments)],
    )


def main() -> None:
    plan = json.load(sys.stdin)
    chains = [[Question(**question) for question in chain] for chain in plan["chains"]]
    answers = asyncio.run(ask_all(plan["port"], chains, plan["seconds"]))
    print(json.dumps([asdict(answer) for answer in answers]))


if __name__ == "__main__":
    main()
