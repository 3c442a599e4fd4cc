"""`python -m tools.schemas`: draw texts that random JSON schemas allow, and validate them with jsonschema."""

from __future__ import annotations

import json
import time

import click
from jsonschema import Draft202012Validator

from rnn_engine.grammar import GrammarError, Vocabulary, json_grammar
from rnn_engine.tokenizer.world import WORLD_PADDED_SIZE, WorldTokenizer
from tests.support.grammars import random_text
from tests.support.random_schemas import random_schema


@click.command()
@click.option("--schemas", default=300, show_default=True)
@click.option("--texts", default=3, show_default=True, help="Texts of each schema.")
@click.option("--most", default=600, show_default=True, help="The most tokens of a text.")
def main(schemas: int, texts: int, most: int) -> None:
    """Draw tokens of the World vocabulary, each allowed token with the same probability.

    Fails if a complete text is not valid.
    """
    world = Vocabulary.of(WorldTokenizer(), WORLD_PADDED_SIZE)
    valid = cut = refused = 0
    begun = time.perf_counter()
    for seed in range(schemas):
        schema = random_schema(seed)
        for number in range(texts):
            try:
                text = random_text(json_grammar(schema), number, world, most)
            except GrammarError as error:
                refused += 1
                click.echo(f"schema {seed} is refused: {error}")
                break
            if text is None:
                cut += 1
                continue
            Draft202012Validator(schema).validate(json.loads(text))
            valid += 1
    seconds = time.perf_counter() - begun
    click.echo(f"{schemas} schemas, {refused} of them refused: {valid} texts valid, {cut} cut ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
