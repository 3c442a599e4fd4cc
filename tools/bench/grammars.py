"""`python -m tools.bench.grammars`: compare tokens per second with and without a grammar, in turns.

Without --model there is no device: a runner recites one JSON document, whatever the grammar is, and --steps sets the
time of its steps. With --model, a model answers under a schema of long lists, and without a schema.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import click

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.grammar import Grammar, Vocabulary, json_grammar
from rnn_engine.grammar.compiled import compile_grammar
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.scheduler import Scheduler
from rnn_engine.tokenizer import Tokenizer
from rnn_engine.tokenizer.world import WorldTokenizer
from rnn_engine.types import Batch, Readout, State, TokenRun
from tools.bench.host import HOST_SHAPE, Load, make_request, run_engine, run_scheduler
from tools.bench.modelled import Clock, DeviceClock, ModelledRunner, RealClock
from tools.bench.turns import Figures, comma_separated, print_table, rounds_option, take_turns

_RECITED = json.loads(Path(__file__).with_name("recited.json").read_text("utf-8"))
DOCUMENT = json.dumps(_RECITED["document"])
_GRAMMARS: Mapping[str, Grammar | None] = {
    "no grammar": None,
    "its schema": json_grammar(_RECITED["schema"]),
    "any object": Grammar("json_object"),
}
_PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
_PEOPLE = {"type": "array", "items": {**_PERSON, "required": ["name", "age"]}, "minItems": 50}


class RecitingRunner(ModelledRunner):
    """A runner that generates `DOCUMENT`, with a grammar and without, and then token 0. Prompts consist of token 0."""

    def __init__(self, num_slots: int, tokenizer: Tokenizer, step_seconds: float, clock: Clock) -> None:
        super().__init__(HOST_SHAPE, num_slots, step_seconds, clock=clock)
        self._tokenizer = tokenizer
        self._lengths = [0] * num_slots  # of the recited texts, in bytes
        document = DOCUMENT.encode()
        self._next = [*(tokenizer.encode(document[start:].decode())[0] for start in range(len(document))), 0]

    def read_out(self, batch: Batch) -> Readout:
        for run in batch:
            if run.masks is not None:
                run.masks()
        readout = super().read_out(batch)
        tokens = [self._next[length] for run in batch for length in self._recite(run)]
        readout = replace(readout, ids=readout.ids.copy(), full_row=lambda row: self.full_row(tokens[row]))
        readout.ids[:, 0] = tokens
        return readout

    def write_state(self, slot: int, state: State | None) -> None:  # noqa: ARG002
        self._lengths[slot] = 0

    def _recite(self, run: TokenRun) -> Sequence[int]:
        """Return the sequence's length in bytes after each token of `run` for which logits are wanted."""
        lengths = []
        for token in run.tokens:
            self._lengths[run.slot] += len(self._tokenizer.decode_bytes(token))
            lengths.append(self._lengths[run.slot])
        return lengths[len(lengths) - run.rows :]


@click.command()
@click.option("--slots", callback=comma_separated(int), default="1,8,32", show_default=True)
@click.option("--steps", callback=comma_separated(float), default="0,5", show_default=True, help="In milliseconds.")
@click.option("--seconds", default=1.0, show_default=True, help="Seconds of each measurement.")
@rounds_option
@click.option("--model", help="Measure an engine with this model, a file or demo, instead of the modelled runner.")
@click.option("--device", default="auto", show_default=True, help="As for rnn-engine serve; only with --model.")
def main(slots: list[int], steps: list[float], seconds: float, rounds: int, model: str | None, device: str) -> None:
    """Measure tokens a second with a grammar and without."""
    for count, step in product(slots, steps if model is None else [0.0]):
        load = Load(count, "nucleus", tokens=128, seconds=seconds, step_seconds=step / 1e3)
        if model is None:
            click.echo(f"{count} slots, {step:g} ms a step")
            sides = {name: partial(_recite, load, grammar) for name, grammar in _GRAMMARS.items()}
        else:
            click.echo(f"{count} slots, {model} on {device}")
            answer = partial(_answer, model_path() if model == "demo" else Path(model), device, load)
            sides = {"any text": partial(answer, None), "schema": partial(answer, json_grammar(_PEOPLE))}
        print_table(take_turns(sides, rounds))


def _recite(load: Load, grammar: Grammar | None) -> Figures:
    clock = DeviceClock() if load.step_seconds else RealClock()
    tokenizer, vocabulary = _vocabulary()
    runner = RecitingRunner(load.slots, tokenizer, load.step_seconds, clock)
    mask = None if grammar is None else compile_grammar(grammar, vocabulary).start
    request = replace(make_request(load), prompt=[0], stop_tokens=(0,), token_mask=mask)
    scheduler = Scheduler(runner, tokenizer.decode_bytes, clock=clock.now)
    return run_scheduler(scheduler, request, load, clock)


@cache
def _vocabulary() -> tuple[Tokenizer, Vocabulary]:
    tokenizer = WorldTokenizer()
    return tokenizer, Vocabulary.of(tokenizer, HOST_SHAPE.vocab_size)


def _answer(model: Path, device: str, load: Load, grammar: Grammar | None) -> Figures:
    request = make_request(load)
    if grammar is not None:
        request = replace(request, stop_tokens=(0,), grammar=grammar)

    async def measure() -> Figures:
        async with await Engine.load(model, LoadSettings(device), num_slots=load.slots, cache=None) as engine:
            return await run_engine(engine, request, load)

    return asyncio.run(measure())


if __name__ == "__main__":
    main()
