"""Simulated clients that chat: each answer is streamed, timed, and included in the conversation's next prompt."""

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
    """The sizes of the simulated conversations. A word is about one token."""

    systems: int = 4  # texts that conversations begin with; text n is chosen in proportion to 1 / n
    system_words: int = 300
    turns: int = 4
    question_words: int = 20
    answer_tokens: int = 32
    pause: float = 0.5  # seconds in the mean between an answer and the next question


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's question in a conversation, and the seconds of pause before it is sent."""

    question: str
    pause: float


@dataclass(frozen=True, slots=True)
class Conversation:
    system: str
    turns: tuple[Turn, ...]


def conversations(traffic: Traffic, seed: int) -> Iterator[Conversation]:
    """Yield random conversations without end. Equal seeds yield equal ones; different seeds share the system texts."""
    systems = [some_words(Random(number), traffic.system_words) for number in range(traffic.systems)]
    shares = [1 / (1 + number) for number in range(traffic.systems)]
    random = Random(f"conversations {seed}")
    while True:
        (system,) = random.choices(systems, shares)
        pauses = [0.0] + [random.expovariate(1 / traffic.pause) for _ in range(traffic.turns - 1)]
        yield Conversation(system, tuple(Turn(some_words(random, traffic.question_words), pause) for pause in pauses))


def arrivals(per_second: float, seconds: float, seed: int) -> list[float]:
    """Return the moments at which conversations begin, as a Poisson process: seconds from the beginning of the load."""
    random, moments, now = Random(f"arrivals {seed}"), list[float](), 0.0
    while (now := now + random.expovariate(per_second)) < seconds:
        moments.append(now)
    return moments


@dataclass(frozen=True, slots=True)
class Asked:
    """The outcome of a load: the answers in the order in which they ended, and the number of rejected questions."""

    answers: Sequence[Answer]
    refused: int


class Clients:
    """The clients of one server, and the answers that they received.

    Times are in seconds from the beginning of the load.
    """

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
        """Run one conversation.

        It ends early after the moment `until`, or if the server rejects a question for lack of room.
        """
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
    """Run a closed load: `clients` clients, each with one conversation after another.

    No question is sent later than `seconds` after the start. All answers are awaited, since long ones would be missing
    otherwise.
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
    """Run an open load: conversations begin at random moments, `per_second` on average. Returns when all have ended."""
    async with patient_session() as session:
        together = Clients(session, url, traffic)

        async def person(moment: float, conversation: Conversation) -> None:
            await asyncio.sleep(max(0.0, moment - together.now))
            await together.chat(conversation)

        moments = arrivals(per_second, seconds, seed=1)
        await asyncio.gather(*map(person, moments, conversations(traffic, seed=1)))
        return Asked(together.answers, together.refused)
