"""Clients that send requests without a pause, and compare each token of the answers with the expected ones."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from aiohttp import ClientSession

from tools.live_server.asking import ask
from tools.live_server.caller import TEXT, Caller, some_words

STORY = "story"  # a named state from which some questions go on
_REPLICA = re.compile(r"the replica (\S+) that ran")
_STORY = {"name": STORY, "prompt": "Once there was a small bird who lived by the river.", "persistent": True}
_SAMPLING = {"ignore_eos": True, "temperature": 1.0, "top_p": 0.9}
_PREFIXES = 6
_QUESTIONS = 30
_WORDS = 80  # of a prefix: more tokens than a replica asks the store for
_TOKENS = 16  # of an answer


@dataclass(frozen=True, slots=True)
class Question:
    """A request body, and the expected tokens of its answer, which one engine generated without a fleet."""

    body: Mapping[str, object]
    tokens: Sequence[int]

    @property
    def needs_store(self) -> bool:
        """True if the request fails without the shared store, since it continues from a named state there."""
        return "state" in self.body


@dataclass(frozen=True, slots=True)
class Lost:
    """A request that ended with an error, and the error."""

    needs_store: bool
    message: str
    retryable: bool  # and the answer says when to come again
    tokens: int  # that had come

    @property
    def replica(self) -> str:
        """The id of the lost replica that ran the request, or "" if the error message names none."""
        found = _REPLICA.search(self.message)
        return found[1] if found else ""


@dataclass
class Tally:
    """The outcomes of the requests of one part of a test: answers and errors."""

    running: int = 0
    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.answered + len(self.lost)

    @property
    def errors(self) -> Counter[str]:
        """Return how often each error message occurred, without the ids of replicas."""
        return Counter(_REPLICA.sub("the replica that ran", lost.message) for lost in self.lost)


async def make_questions(url: str) -> list[Question]:
    """Return questions with their expected tokens, which the server with one engine at `url` generates."""
    questions, random = [], Random(0)
    async with ClientSession() as session:
        await make_story(session, url)
        for number in range(_QUESTIONS):
            prompt = f"{some_words(Random(number % _PREFIXES), _WORDS)} {some_words(random, 8)}"
            body: dict[str, object] = {"prompt": prompt, "max_tokens": _TOKENS, "seed": number, **_SAMPLING}
            body |= {"return_token_ids": True} | ({"state": STORY} if number % 10 == 0 else {})
            answer = await ask(session, url + TEXT, body)
            questions.append(Question(body, answer.token_ids))
    return questions


async def make_story(session: ClientSession, url: str) -> str:
    """Create the named state that some questions continue from, and return its digest."""
    made = await Caller(session, url, Random(0), 0).call("POST", "/v1/states", _STORY)
    return str(made["state"]["digest"])


class Load:
    """Clients that send questions to a fleet, and the tallies of their outcomes by part of the test."""

    def __init__(self, url: str, session: ClientSession, questions: Sequence[Question], random: Random) -> None:
        self.tallies: dict[str, Tally] = {}
        self._url = url
        self._session = session
        self._questions = questions
        self._random = random
        self._numbers = itertools.count()
        self._tally = Tally()

    def begin(self, part: str) -> Tally:
        """Begin a part of the test, and return its tally. It counts all requests that begin from now on."""
        self._tally = self.tallies.setdefault(part, Tally())
        return self._tally

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[None]:
        """Run `count` clients until the block ends. Raises any exception that a client does not expect."""
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
        """Send one question, as a stream if `streams`, and add its outcome to the tally."""
        tally = self._tally
        tally.running += 1
        try:
            answer = await ask(self._session, self._url + TEXT, {**question.body, "stream": streams})
        finally:
            tally.running -= 1
        expected = question.tokens if answer.error is None else question.tokens[: len(answer.token_ids)]
        if answer.token_ids != expected:
            tally.wrong.append(f"{question.body['seed']}: {answer.token_ids}, not {expected}")
        if answer.error is not None:
            promised = answer.status == 200 or answer.promises_more
            retryable = promised and answer.error.get("code") == "unavailable"
            message, count = str(answer.error["message"]), len(answer.token_ids)
            tally.lost.append(Lost(question.needs_store, message, retryable, count))
        else:
            tally.answered += 1
