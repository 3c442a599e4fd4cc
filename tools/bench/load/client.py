"""Clients that chat: each answer is streamed, timed, and sent again in the next prompt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from aiohttp import ClientSession

from tools.live_server.asking import Answer, ask, patient_session
from tools.live_server.caller import some_words


@dataclass(frozen=True, slots=True)
class Traffic:
    """The sizes of a load. A word is about a token."""

    systems: int = 4  # texts that conversations begin with; text n is chosen in proportion to 1 / n
    system_words: int = 300
    turns: int = 4
    question_words: int = 20
    answer_tokens: int = 32
    pause: float = 0.5  # seconds in the mean between an answer and the next question


@dataclass(frozen=True, slots=True)
class Turn:
    """A question, and the seconds that the person thinks before asking it."""

    question: str
    pause: float


@dataclass(frozen=True, slots=True)
class Conversation:
    system: str
    turns: tuple[Turn, ...]


def conversations(traffic: Traffic, seed: int) -> Iterator[Conversation]:
    """Yield conversations without end, the same for the same seed. All seeds share the system texts."""
    systems = [some_words(Random(number), traffic.system_words) for number in range(traffic.systems)]
    shares = [1 / (1 + number) for number in range(traffic.systems)]
    random = Random(f"conversations {seed}")
    while True:
        (system,) = random.choices(systems, shares)
        pauses = [0.0] + [random.expovariate(1 / traffic.pause) for _ in range(traffic.turns - 1)]
        yield Conversation(system, tuple(Turn(some_words(random, traffic.question_words), pause) for pause in pauses))


def arrivals(per_second: float, seconds: float, seed: int) -> list[float]:
    """Return the arrivals of a Poisson process, in seconds from the beginning."""
    random, moments, now = Random(f"arrivals {seed}"), list[float](), 0.0
    while (now := now + random.expovariate(per_second)) < seconds:
        moments.append(now)
    return moments


@dataclass(frozen=True, slots=True)
class Asked:
    """The outcome of a load: the answers, in the order of their ends, and the number of refused questions."""

    answers: Sequence[Answer]
    refused: int


class Clients:
    """Clients of one server, with the answers that they got. Times are in seconds from the beginning of the load."""

    def __init__(self, session: ClientSession, url: str, traffic: Traffic) -> None:
        self.answers: list[Answer] = []
        self.refused = 0
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._body: dict[str, object] = {"max_tokens": traffic.answer_tokens, "ignore_eos": True, "temperature": 0}
        self._body |= {"stream": True, "stream_options": {"include_usage": True}}
        self._begun = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begun

    async def chat(self, conversation: Conversation, until: float = float("inf")) -> None:
        """Hold one conversation, without a question after `until`, until the server has no room."""
        messages = [{"role": "system", "content": conversation.system}]
        for turn in conversation.turns:
            await asyncio.sleep(turn.pause)
            messages.append({"role": "user", "content": turn.question})
            if self.now >= until:
                return
            answer = await ask(self._session, self._url, {"messages": messages, **self._body}, self._begun)
            if answer.status in (429, 503):
                self.refused += 1
                return
            if answer.error is not None:
                raise RuntimeError(f"{answer.status}: {answer.error}")
            self.answers.append(answer)
            messages.append({"role": "assistant", "content": answer.text})


async def run_closed(url: str, traffic: Traffic, clients: int, seconds: float) -> Asked:
    """Run `clients` clients, each with one conversation after another and no question after `seconds`.

    All answers are awaited, since long ones would be missing otherwise.
    """
    async with patient_session() as session:
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
    async with patient_session() as session:
        together = Clients(session, url, traffic)

        async def person(moment: float, conversation: Conversation) -> None:
            await asyncio.sleep(max(0.0, moment - together.now))
            await together.chat(conversation)

        moments = arrivals(per_second, seconds, seed=1)
        await asyncio.gather(*map(person, moments, conversations(traffic, seed=1)))
        return Asked(together.answers, together.refused)
