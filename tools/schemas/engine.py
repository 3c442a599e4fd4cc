"""`python -m tools.schemas.engine`: generate answers under random JSON schemas, and validate the streamed answers.

Tokens are drawn at temperature 1. Fails if a complete answer is not valid, or if an answer ends for a reason other than
its end or `max_tokens`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

import click
from jsonschema import Draft202012Validator

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.grammar import json_grammar
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.runner import load_runner
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.requests import GenerateRequest, SamplingParams, TextDelta
from rnn_engine.tokenizer.world import WORLD_PADDED_SIZE, WorldTokenizer
from tests.support.clients import Heard
from tests.support.engines import listen
from tests.support.models import random_model, tiny_shape
from tests.support.random_schemas import Schema, random_schema

_SLOTS = 8


@click.command()
@click.option(
    "--models", default="demo,random", show_default=True, help="demo, or random for random weights of World's size."
)
@click.option("--schemas", default=300, show_default=True)
@click.option("--most", default=600, show_default=True, help="The most tokens of an answer.")
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve.")
def main(models: str, schemas: int, most: int, device: str) -> None:
    """Answer each schema once with each model, eight at a time."""
    for model in models.split(","):
        begun = time.perf_counter()
        counts = asyncio.run(answer_all(model, device, range(schemas), most))
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        click.echo(f"{model}: {schemas} schemas: {told} ({time.perf_counter() - begun:.0f} s)")


async def answer_all(model: str, device: str, seeds: range, most: int) -> Counter[str]:
    """Generate an answer for the schema of each seed. Count the answers that are valid, cut off, or streamed in pieces.

    Raises if an answer is neither valid nor cut.
    """
    engine = await Engine.load(model_path(), LoadSettings(device)) if model == "demo" else _random_engine(device)
    counts: Counter[str] = Counter()
    waiting = iter(seeds)

    async def work() -> None:
        for seed in waiting:
            schema = random_schema(seed)
            heard = await listen(engine, _ask(engine, schema, seed, most))
            counts[check(schema, heard)] += 1
            counts["streamed in several pieces"] += sum(isinstance(event, TextDelta) for event in heard.events) > 1

    async with engine, asyncio.TaskGroup() as group:
        for _ in range(_SLOTS):
            group.create_task(work())
    return counts


def check(schema: Schema, heard: Heard) -> str:
    """Return "valid" if the answer is valid under `schema`, or "cut" if it was cut off by the token limit.

    Raises if it is invalid, or ended for another reason.
    """
    reason = heard.finished.reason
    if reason == "length":
        return "cut"
    if reason != "stop":
        raise AssertionError(f"an answer that ended with {reason}")
    Draft202012Validator(schema).validate(json.loads(heard.text))
    return "valid"


def _ask(engine: Engine, schema: Schema, seed: int, most: int) -> GenerateRequest:
    sampling = SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=seed)
    prompt = engine.tokenize(f"User: {json.dumps(schema)}\n\nAssistant:")
    return GenerateRequest(prompt, max_tokens=most, sampling=sampling, grammar=json_grammar(schema))


def _random_engine(device: str) -> Engine:
    runner = load_runner(random_model(tiny_shape(vocab=WORLD_PADDED_SIZE), seed=1), device, num_slots=_SLOTS)
    return Engine(assemble(runner, WorldTokenizer(), model="random", device=device, weights="f16"))


if __name__ == "__main__":
    main()
