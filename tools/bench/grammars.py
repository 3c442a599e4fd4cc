"""`python -m tools.bench.grammars`: compare tokens per second with and without a grammar, in alternating runs.

Without --model there is no device: a runner recites one JSON document, whatever the grammar is, and --step sets the
time of its steps. With --model, a model answers under a schema of long lists, and without a schema.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter

import click

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.grammar import json_grammar
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, SamplingParams
from tools.bench.host.modes import Load, Rate, consume, run_scheduler

_PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
_PEOPLE = {"type": "array", "items": {**_PERSON, "required": ["name", "age"]}, "minItems": 50}


@click.command()
@click.option("--slots", default="1,8,32", show_default=True)
@click.option("--step", default="0,5", show_default=True, help="Milliseconds that a step of the modelled runner takes.")
@click.option("--tokens", default=128, show_default=True, help="The most tokens of an answer.")
@click.option("--seconds", default=1.0, show_default=True, help="Seconds of each measurement.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--model", help="Measure an engine with this model, a file or demo, instead of the modelled runner.")
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve; only with --model.")
def main(slots: str, step: str, tokens: int, seconds: float, rounds: int, model: str | None, device: str) -> None:
    """Measure tokens a second with a grammar and without."""
    click.echo("| slots | step | answers | tok/s | ratio (least-greatest) | tok/CPU s | ratio (least-greatest) |")
    click.echo("|---|---|---|---|---|---|---|")
    for count in map(int, slots.split(",")):
        if model is not None:
            asyncio.run(_measure_model(model, device, Load(count, "nucleus", tokens, seconds), rounds))
            continue
        for milliseconds in map(float, step.split(",")):
            rates: dict[str, list[Rate]] = {"json": [], "schema": [], "object": []}
            for _ in range(rounds):
                for answers, found in rates.items():
                    load = Load(count, "nucleus", tokens, seconds, answers, milliseconds / 1e3)
                    found.append(run_scheduler(load))
            _print(count, f"{milliseconds:g} ms", rates)


async def _measure_model(model: str, device: str, load: Load, rounds: int) -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.5)
    plain = GenerateRequest([1], max_tokens=load.tokens, stop_tokens=(), sampling=sampling)
    held = GenerateRequest([1], max_tokens=load.tokens, sampling=sampling, grammar=json_grammar(_PEOPLE))
    rates: dict[str, list[Rate]] = {"any text": [], "schema": []}
    async with await Engine.load(
        model_path() if model == "demo" else model, LoadSettings(device), num_slots=load.slots, cache=None
    ) as engine:
        for _ in range(rounds):
            for (_, found), request in zip(rates.items(), (plain, held), strict=True):
                found.append(await consume(engine, request, load))
    _print(load.slots, model, rates)


def _print(slots: int, step: str, rates: Mapping[str, Sequence[Rate]]) -> None:
    plain = next(iter(rates.values()))
    for answers, found in rates.items():
        columns = [str(slots), step, answers]
        for figure in (attrgetter("per_second"), attrgetter("per_cpu_second")):
            ratios = [figure(one) / figure(other) for one, other in zip(found, plain, strict=True)]
            columns.append(f"{statistics.median(map(figure, found)):,.0f}")
            columns.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
        click.echo(f"| {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
