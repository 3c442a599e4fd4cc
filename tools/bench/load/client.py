"""People who chat: each answer is streamed, timed, and part of what is sent next."""

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
    """One answer, by the client's clock, in seconds."""

    asked: float
    first: float  # its first token
    ended: float
    tokens: int
    prompt_tokens: int
    cached_tokens: int


class Clients:
    """Chats with one server. What they were answered is in `answers`, in the order of their ends."""

    def __init__(self, session: ClientSession, url: str, traffic: Traffic) -> None:
        self.answers: list[Answered] = []
        self.refused = 0
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._traffic = traffic

    async def chat(self, conversation: Conversation) -> None:
        """Have one conversation."""
        messages = [{"role": "system", "content": conversation.system}]
        for turn in conversation.turns:
            await asyncio.sleep(turn.pause)
            messages.append({"role": "user", "content": turn.question})
            if (text := await self._ask(messages)) is None:
                return
            messages.append({"role": "assistant", "content": text})

    async def _ask(self, messages: Sequence[dict[str, str]]) -> str | None:
        """Return the answer's text, or None where the server has no room."""
        body = {
            "messages": messages,
            "max_tokens": self._traffic.answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        asked, first, parts, usage = time.perf_counter(), 0.0, list[str](), dict[str, Any]()
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
                    first = first or time.perf_counter()
                    parts.append(text)
        self.answers.append(
            Answered(
                asked,
                first or time.perf_counter(),
                time.perf_counter(),
                usage["completion_tokens"],
                usage["prompt_tokens"],
                usage["prompt_tokens_details"]["cached_tokens"],
            )
        )
        return "".join(parts)


async def run_closed(url: str, traffic: Traffic, clients: int, seconds: float) -> Clients:
    """Have as many people chat at the same time, one conversation after another, until `seconds` are over."""
    async with _session() as session:
        together = Clients(session, url, traffic)

        async def person(seed: int) -> None:
            for conversation in conversations(traffic, seed):
                await together.chat(conversation)

        people = [asyncio.ensure_future(person(seed)) for seed in range(clients)]
        done, _ = await asyncio.wait(people, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in people:
            task.cancel()
        await asyncio.gather(*people, return_exceptions=True)
        for task in done:
            task.result()
        return together


async def run_open(url: str, traffic: Traffic, per_second: float, seconds: float) -> Clients:
    """Have conversations begin at random moments, `per_second` in the mean, and wait until all have ended."""
    async with _session() as session:
        together, begun = Clients(session, url, traffic), time.perf_counter()

        async def person(moment: float, conversation: Conversation) -> None:
            await asyncio.sleep(max(0.0, begun + moment - time.perf_counter()))
            await together.chat(conversation)

        moments = arrivals(per_second, seconds, seed=1)
        await asyncio.gather(*map(person, moments, conversations(traffic, seed=1)))
        return together


def _session() -> ClientSession:
    return ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=600))
