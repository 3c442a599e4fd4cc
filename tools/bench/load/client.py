"""Clients that chat: each answer is streamed, timed, and sent again in the next prompt."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from tools.bench.load.traffic import Conversation, Traffic, arrivals, conversations


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer. Times are in seconds from the beginning of the load."""

    asked: float
    moments: Sequence[float]  # when each piece of text came, at least one
    tokens: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The outcome of a load: the answers, in the order of their ends, and the number of refused questions."""

    answers: Sequence[Answered]
    refused: int


class Clients:
    """Clients of one server, with the answers that they got."""

    def __init__(self, session: ClientSession, url: str, traffic: Traffic) -> None:
        self.answers: list[Answered] = []
        self.refused = 0
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._traffic = traffic
        self._begun = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begun

    async def chat(self, conversation: Conversation, until: float = float("inf")) -> None:
        """Hold one conversation, without a question after `until`."""
        messages = [{"role": "system", "content": conversation.system}]
        for turn in conversation.turns:
            await asyncio.sleep(turn.pause)
            messages.append({"role": "user", "content": turn.question})
            if self.now >= until or (text := await self._ask(messages)) is None:
                return
            messages.append({"role": "assistant", "content": text})

    async def _ask(self, messages: Sequence[dict[str, str]]) -> str | None:
        """Return the answer's text, or None if the server has no room."""
        body = {
            "messages": messages,
            "max_tokens": self._traffic.answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        asked, moments, parts, usage = self.now, list[float](), list[str](), dict[str, Any]()
        async with self._session.post(self._url, json=body) as answer:
            if answer.status in (429, 503):
                self.refused += 1
                return None
            answer.raise_for_status()
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if event["choices"] and (text := event["choices"][0]["delta"].get("content")):
                    moments.append(self.now)
                    parts.append(text)
        counts = usage["completion_tokens"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        self.answers.append(Answered(asked, moments or [self.now], *counts))
        return "".join(parts)


async def run_closed(url: str, traffic: Traffic, clients: int, seconds: float) -> Asked:
    """Run `clients` clients, each with one conversation after another and no question after `seconds`.

    All answers are awaited, since long ones would be missing otherwise.
    """
    async with _session() as session:
        together = Clients(session, url, traffic)

        async def person(seed: int) -> None:
            for conversation in conversations(traffic, seed):
                await together.chat(conversation, seconds)
                if together.now >= seconds:
                    return

        await asyncio.gather(*map(person, range(clients)))
        return Asked(together.answers, together.refused)


async def run_open(url: str, traffic: Traffic, per_second: float, seconds: float) -> Asked:
    """Start conversations at random moments, `per_second` on average, and wait until all have ended."""
    async with _session() as session:
        together = Clients(session, url, traffic)

        async def person(moment: float, conversation: Conversation) -> None:
            await asyncio.sleep(max(0.0, moment - together.now))
            await together.chat(conversation)

        moments = arrivals(per_second, seconds, seed=1)
        await asyncio.gather(*map(person, moments, conversations(traffic, seed=1)))
        return Asked(together.answers, together.refused)


def _session() -> ClientSession:
    return ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=600))
