"""`python -m tools.bench.load`: simulate many people who chat with a server, and measure how long they wait.

Clients of a closed load ask again when they have been answered and have thought. Conversations of an open load begin at
random moments, even if the server can't keep up. The server runs in a process of its own, started anew for each load,
so that loads do not find each other's prefixes in the cache. Each load runs with the server's cache and without it.
With --replicas, it runs over one engine and over fleets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import click
import numpy as np
from aiohttp import ClientSession

from tools.bench.turns import Figures, comma_separated, show
from tools.live_server.asking import Answer, ask, patient_session
from tools.live_server.caller import CHAT, some_words
from tools.live_server.process import CLI, ServerProcess

FIRST, FIRST_95, BETWEEN, SPEED = "first token ms", "first token 95 %", "between tokens ms", "tokens/s"
_LOADS = {"closed": "clients", "open": "conversations/s"}
_Options: TypeAlias = dict[str, tuple[str, ...]]  # a server's name in the table -> its options
_CACHES: _Options = {"cache": (), "no cache": ("--cache-device-bytes", "0", "--cache-host-bytes", "0")}
_MODELLED_CACHES: _Options = {"cache": (), "no cache": ("--states", "0")}


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one load by their names."""

    server: str
    load: str  # of `_LOADS`
    size: float  # clients of a closed load, conversations a second of an open one
    figures: Figures

    def __str__(self) -> str:
        """Return a row of a Markdown table."""
        cells = (f"{self.size:g} {_LOADS[self.load]}", self.server, *map(show, self.figures.values()))
        return f"| {' | '.join(cells)} |"


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
class Conversation:
    system: str
    questions: Sequence[str]
    pauses: Sequence[float]  # in seconds, before each question


def conversations(traffic: Traffic, seed: int) -> Iterator[Conversation]:
    """Yield random conversations without end. Equal seeds yield equal ones; different seeds share the system texts."""
    systems = [some_words(Random(number), traffic.system_words) for number in range(traffic.systems)]
    shares = [1 / (1 + number) for number in range(traffic.systems)]
    random = Random(f"conversations {seed}")
    while True:
        (system,) = random.choices(systems, shares)
        pauses = [0.0] + [random.expovariate(1 / traffic.pause) for _ in range(traffic.turns - 1)]
        yield Conversation(system, [some_words(random, traffic.question_words) for _ in pauses], pauses)


def arrivals(per_second: float, seconds: float, seed: int) -> list[float]:
    """Return the moments at which conversations begin, as a Poisson process: seconds from the beginning of the load."""
    random, moments, now = Random(f"arrivals {seed}"), list[float](), 0.0
    while (now := now + random.expovariate(per_second)) < seconds:
        moments.append(now)
    return moments


class Clients:
    """The clients of one server, and the answers that they received in the order in which these ended.

    Times are in seconds from the beginning of the load.
    """

    def __init__(self, session: ClientSession, url: str, traffic: Traffic) -> None:
        self.answers: list[Answer] = []
        self.refused = 0  # questions
        self._session = session
        self._url = url + CHAT
        self._traffic = traffic
        self._body: dict[str, object] = {"max_tokens": traffic.answer_tokens, "ignore_eos": True, "temperature": 0}
        self._body |= {"stream": True, "stream_options": {"include_usage": True}}
        self._begun = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._begun

    async def run_closed(self, clients: float, seconds: float, first_seed: int = 0) -> None:
        """Run a closed load: `clients` clients, each with one conversation after another.

        The seeds of their conversations are numbers from `first_seed` on. No question is sent later than `seconds`
        after the start. All answers are awaited, since long ones would be missing otherwise.
        """

        async def person(seed: int) -> None:
            for conversation in conversations(self._traffic, seed):
                await self.chat(conversation, seconds)
                if self.now >= seconds:
                    return

        await asyncio.gather(*map(person, range(first_seed, first_seed + int(clients))))

    async def run_open(self, per_second: float, seconds: float) -> None:
        """Run an open load: conversations begin at random moments, `per_second` on average. Returns when all ended."""

        async def person(moment: float, conversation: Conversation) -> None:
            await asyncio.sleep(max(0.0, moment - self.now))
            await self.chat(conversation)

        moments = arrivals(per_second, seconds, seed=1)
        await asyncio.gather(*map(person, moments, conversations(self._traffic, seed=1)))

    async def chat(self, conversation: Conversation, until: float = float("inf")) -> None:
        """Run one conversation.

        It ends early after the moment `until`, or if the server rejects a question for lack of room.
        """
        messages = [{"role": "system", "content": conversation.system}]
        for question, pause in zip(conversation.questions, conversation.pauses, strict=True):
            await asyncio.sleep(pause)
            messages.append({"role": "user", "content": question})
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


def summarise(clients: Clients, seconds: float, cpu: float) -> Figures:
    """Return the figures of a load that lasted `seconds`, and in which the server used `cpu` seconds of the processor.

    There must be at least one answer.
    """
    answers = clients.answers
    firsts = [1e3 * answer.first for answer in answers]
    # Of answers in the mean, so that a piece of several tokens counts as these.
    between = [1e3 * (each.moments[-1] - each.moments[0]) / (each.tokens - 1) for each in answers if each.tokens > 1]
    # A piece may hold several tokens; an answer's tokens are taken to be spread evenly over its pieces.
    in_time = (each.tokens * sum(moment < seconds for moment in each.moments) / len(each.moments) for each in answers)
    return {
        "answers": len(answers),
        "refused": clients.refused,
        FIRST: _percentile(firsts, 50),
        FIRST_95: _percentile(firsts, 95),
        BETWEEN: _percentile(between, 50),
        "longest gaps, 99 %": _percentile([1e3 * gap for answer in answers for gap in answer.gaps], 99),
        SPEED: sum(in_time) / seconds,
        "saved %": 100 * sum(each.cached_tokens for each in answers) / sum(each.prompt_tokens for each in answers),
        "server's CPU ms a token": 1e3 * cpu / sum(answer.tokens for answer in answers),
    }


def _percentile(values: Sequence[float], percent: int) -> float:
    return float(np.percentile(values or [0.0], percent))


_numbers = comma_separated(float)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--clients", callback=_numbers, default="1,4,16,64,256", show_default=True, help="Of closed loads.")
@click.option("--rates", callback=_numbers, default="0.5,1,2,4", show_default=True, help="Of open loads, a second.")
@click.option("--seconds", default=15.0, show_default=True, help="Seconds of each load in which clients ask.")
@click.option("--modelled", is_flag=True, help="Start tools.bench.serve, whose steps take a modelled time.")
@click.option("--replicas", callback=comma_separated(str), default="", help="Sizes of modelled fleets to start.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(
    clients: list[float],
    rates: list[float],
    seconds: float,
    modelled: bool,
    replicas: list[str],
    options: Sequence[str],
) -> None:
    """Measure the waiting times of clients. OPTIONS go to the server: `rnn-engine serve`, or `tools.bench.serve`."""
    command: Sequence[str] = ("tools.bench.serve",) if modelled or replicas else (CLI, "serve")
    variants = _MODELLED_CACHES if modelled else _CACHES
    if replicas:
        variants = {"one engine": (), **{f"{count} replicas": ("--replicas", count) for count in replicas}}
    lines: list[Line] = []
    for load, size in [*(("closed", size) for size in clients), *(("open", size) for size in rates)]:
        for name, more in variants.items():
            with ServerProcess([*options, *more], command=command) as server:
                lines.append(Line(name, load, size, asyncio.run(_measure(server, load, size, seconds))))
                server.stop()
            if len(lines) == 1:
                heads = ["load", "server", *lines[0].figures]
                click.echo(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
            click.echo(lines[-1])


async def _measure(server: ServerProcess, load: str, size: float, seconds: float) -> Figures:
    begun = server.cpu_seconds()
    async with patient_session() as session:
        clients = Clients(session, server.url, Traffic())
        await (clients.run_closed if load == "closed" else clients.run_open)(size, seconds)
    if not clients.answers:
        raise click.ClickException(f"no answers in {seconds:g} s; make --seconds longer")
    return summarise(clients, seconds, server.cpu_seconds() - begun)


if __name__ == "__main__":
    main()
