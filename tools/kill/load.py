"""Clients that ask without a pause, and compare every token with that of one engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import ClientResponse, ClientSession

from tools.live_server.caller import Caller

PATH = "/v1/completions"
STORY = "story"  # a named state from which some questions go on
REPLICA = re.compile(r"the replica (\S+) that ran")
_STORY = {"name": STORY, "prompt": "Once there was a small bird who lived by the river.", "persistent": True}
_PREFIXES = 6
_QUESTIONS = 30
_WORDS = 80  # of a prefix: more tokens than a replica asks the store for
_TOKENS = 16  # of an answer


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and the tokens that one engine answers."""

    body: Mapping[str, object]
    tokens: Sequence[int]

    @property
    def needs_store(self) -> bool:
        """Whether it goes on from a named state, which lies in the store."""
        return "state" in self.body


@dataclass(frozen=True, slots=True)
class Lost:
    """A request that ended with an error."""

    needs_store: bool
    message: str
    retryable: bool  # and the answer says when to come again
    tokens: int  # that had come


@dataclass
class Tally:
    """What became of the requests of one part of the time."""

    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    first: list[float] = field(default_factory=list)  # seconds until a stream's first token
    first_named: list[float] = field(default_factory=list)  # likewise, where the request names a state

    @property
    def requests(self) -> int:
        return self.answered + len(self.lost)

    @property
    def errors(self) -> Counter[str]:
        """How often each message came, without the names of replicas."""
        return Counter(REPLICA.sub("the replica that ran", lost.message) for lost in self.lost)


async def make_questions(caller: Caller) -> list[Question]:
    """Return questions with the answers of the one engine that `caller` asks."""
    await make_story(caller)
    questions = []
    for number in range(_QUESTIONS):
        words = Random(number % _PREFIXES)
        prefix = Caller(caller.session, caller.url, words, 0).text(_WORDS)
        body: dict[str, object] = {
            "prompt": f"{prefix} {caller.text(8)}",
            "max_tokens": _TOKENS,
            "ignore_eos": True,
            "seed": number,
            "temperature": 1.0,
            "top_p": 0.9,
            "return_token_ids": True,
        }
        if number % 10 == 0:
            body["state"] = STORY
        answer = await caller.call("POST", PATH, body)
        questions.append(Question(body, answer["choices"][0]["token_ids"]))
    return questions


async def make_story(caller: Caller) -> str:
    """Make the named state that questions go on from; return its digest."""
    return str((await caller.call("POST", "/v1/states", _STORY))["state"]["digest"])


class Load:
    """Clients that ask questions until the block ends."""

    def __init__(self, url: str, session: ClientSession, questions: Sequence[Question], random: Random) -> None:
        self.tallies: dict[str, Tally] = {}
        self._url = url
        self._session = session
        self._questions = questions
        self._random = random
        self._numbers = itertools.count()
        self._tally = Tally()

    def begin(self, part: str) -> Tally:
        """Have requests counted in a part of the time from now on, by when they begin; return its counts."""
        self._tally = self.tallies.setdefault(part, Tally())
        return self._tally

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[None]:
        """Run so many clients. Raises what none of them should ever meet."""
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._run(stopping))
            yield
            stopping.set()

    async def _run(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            await self.ask(self._random.choice(self._questions), streams=next(self._numbers) % 3 > 0)

    async def ask(self, question: Question, *, streams: bool) -> None:
        """Ask one question, and count what became of it."""
        tally, begun, first, tokens = self._tally, time.monotonic(), None, list[int]()
        body = {**question.body, "stream": streams}
        error: Mapping[str, Any] | None = None
        async with self._session.post(self._url + PATH, json=body) as response:
            if response.status != 200:
                error = (await response.json())["error"] | {"status": response.status}
            elif streams:
                async for event in _events(response):
                    if (error := event.get("error")) is not None:
                        break
                    tokens += [token for choice in event["choices"] for token in choice.get("token_ids") or ()]
                    first = first or (time.monotonic() if tokens else None)
            else:
                tokens = (await response.json())["choices"][0]["token_ids"]
            promised = response.status == 200 or "Retry-After" in response.headers
        expected = question.tokens if error is None else question.tokens[: len(tokens)]
        if tokens != expected:
            tally.wrong.append(f"{question.body['seed']}: {tokens}, not {expected}")
        if error is not None:
            retryable = promised and error["code"] == "unavailable"
            tally.lost.append(Lost(question.needs_store, str(error["message"]), retryable, len(tokens)))
            return
        tally.answered += 1
        if first is not None:
            (tally.first_named if question.needs_store else tally.first).append(first - begun)


async def _events(response: ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))
