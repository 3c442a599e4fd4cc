"""`python -m tools.bench.fleet`: measure what a fleet on Ray Serve costs and saves, with modelled steps."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from statistics import median, quantiles

import click

from tools.bench.fleet.asking import Question
from tools.bench.fleet.fleets import ask, fleet, one_engine
from tools.bench.host.modes import count_tokens
from tools.bench.modelled import VOCAB, Hardware
from tools.live_server.asking import Answer

_BODY = {"prompt": [1], "max_tokens": 64, "stream": True}
_PREFIX = 1000  # tokens


@click.group()
def main() -> None:
    """Measure a fleet of modelled replicas on real Ray, through HTTP, with the clients in another process."""


@main.command()
@click.option("--replicas", default="1,2,4,8", show_default=True)
@click.option("--step", default=0.1, show_default=True, help="Seconds that a modelled step takes.")
@click.option("--slots", default=8, show_default=True, help="Slots of each replica; all are busy.")
@click.option("--seconds", default=10.0, show_default=True)
def throughput(replicas: str, step: float, slots: int, seconds: float) -> None:
    """Compare the tokens a second of N replicas with N times one engine's, and show their processor time in front."""
    hardware = Hardware(slots=slots, step=step, token=0.0)
    asyncio.run(_throughput([int(number) for number in replicas.split(",")], hardware, seconds))


async def _throughput(replicas: Sequence[int], hardware: Hardware, seconds: float) -> None:
    async with one_engine(hardware) as port:
        one = await count_tokens(port, hardware.slots, seconds, _BODY)
    click.echo(f"one engine: {one.per_second:.1f} tokens/s")
    for count in replicas:
        async with fleet(hardware, count) as port:
            begun = time.process_time()
            counted = await count_tokens(port, count * hardware.slots, seconds, _BODY)
            used = time.process_time() - begun
        click.echo(
            f"{count} replicas: {counted.per_second:.1f} tokens/s, "
            f"{counted.per_second / (count * one.per_second):.1%} of {count} times one engine, "
            f"{1e6 * used / counted.tokens:.0f} us of the front's processor for each token"
        )


@main.command()
@click.option("--step", default=0.01, show_default=True, help="Seconds that a modelled step takes.")
@click.option("--requests", default=200, show_default=True, help="Requests to each of the two in a round.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--tokens", default=8, show_default=True, help="Tokens of an answer.")
def latency(step: float, requests: int, rounds: int, tokens: int) -> None:
    """Measure the time that the fleet adds to one engine's, with requests one after the other, in turns."""
    asyncio.run(_latency(Hardware(slots=8, step=step, token=0.0), requests, rounds, tokens))


async def _latency(hardware: Hardware, requests: int, rounds: int, tokens: int) -> None:
    draw = random.Random(1)
    pauses = [draw.uniform(0.0, 0.02) for _ in range(requests)]
    chain = [Question(pause, _body(_tokens(draw, 8), tokens)) for pause in pauses]
    firsts: dict[str, list[float]] = {"one engine": [], "fleet": []}
    gaps: dict[str, list[float]] = {"one engine": [], "fleet": []}
    async with one_engine(hardware) as one, fleet(hardware, 1) as many:
        for _ in range(rounds):
            for name, port in (("one engine", one), ("fleet", many)):
                answers = await ask(port, [chain])
                firsts[name] += (answer.first for answer in answers)
                gaps[name] += (gap for answer in answers for gap in answer.gaps)
    for what, figures in (("first token", firsts), ("between tokens", gaps)):
        alone, added = (_milliseconds(figures[name]) for name in ("one engine", "fleet"))
        click.echo(
            f"{what}: one engine {alone[0]:.1f} ms, 99 % {alone[1]:.1f}; "
            f"the fleet adds {added[0] - alone[0]:.1f}, 99 % {added[1] - alone[1]:.1f}"
        )


@main.command()
@click.option("--replicas", default=4, show_default=True)
@click.option("--prompts", default=64, show_default=True)
@click.option("--slots", default=16, show_default=True, help="Slots of each replica.")
@click.option(
    "--spread", default=0.0, show_default=True, help="Seconds over which the prompts arrive; 0 = all at once."
)
def prefix(replicas: int, prompts: int, slots: int, spread: float) -> None:
    """Measure prompts that share 1,000 tokens, with routing and without."""
    asyncio.run(_prefix(replicas, prompts, Hardware(slots=slots, step=0.02, token=0.0005), spread))


async def _prefix(replicas: int, prompts: int, hardware: Hardware, spread: float) -> None:
    draw = random.Random(1)
    shared = _tokens(draw, _PREFIX)
    bodies = [_body([*shared, *_tokens(draw, 20)], 16) for _ in range(prompts)]
    plan = [[Question(number * spread / prompts, body)] for number, body in enumerate(bodies)]
    for routed in (True, False):
        async with fleet(hardware, replicas, routed=routed) as port:
            answers = await ask(port, plan)
        click.echo(f"routing {'on' if routed else 'off'}: {_saved(answers)}")


def _saved(answers: Sequence[Answer]) -> str:
    whole = sum(answer.cached_tokens < _PREFIX for answer in answers)
    saved = sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers)
    middle, late = _milliseconds([answer.first for answer in answers])
    return (
        f"the shared tokens run {whole} times, {saved:.1%} of all tokens of prompts saved, "
        f"first token {middle:.0f} ms, 99 % {late:.0f}"
    )


def _milliseconds(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile of latencies, as a text in milliseconds."""
    return 1e3 * median(seconds), 1e3 * quantiles(seconds, n=100, method="inclusive")[98]


def _body(prompt: Sequence[int], tokens: int) -> dict[str, object]:
    return {"prompt": list(prompt), "max_tokens": tokens}


def _tokens(draw: random.Random, count: int) -> list[int]:
    return draw.choices(range(2, VOCAB), k=count)


if __name__ == "__main__":
    main()
