"""`python -m tools.bench.retrieval`: what queries of a collection take, with and without the states of documents.

Documents of random words are added to a collection, and queries of a few of their words are asked: the first and the
next ones, then again after a restart that reads all states from the disk, then by a model that keeps no states. The
last row is computed: the tokens of a query that reranks all documents anew, as without a collection.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click

from rnn_engine import LLM, Collection, Search
from rnn_engine.demo import DEMO
from rnn_engine.operations.relevance import num_prompt_tokens, relevance_prompts
from states.cache.config import CacheConfig, DiskConfig
from tools.bench.peers import SHAPES, write_random_model
from tools.bench.turns import show

_NUM_WORDS = 500  # different ones
_QUERY_WORDS = 8
_PART = 32  # documents that are added at a time


@dataclass(frozen=True, slots=True)
class Asked:
    """The results of some queries and the seconds that each took."""

    found: Sequence[Search]
    seconds: Sequence[float]

    def cells(self) -> list[str]:
        """Return the medians of seconds, tokens run and tokens kept, as cells of a table."""
        kept = [sum(cost.cached_tokens for cost in each.costs) for each in self.found]
        run = [each.tokens_run for each in self.found]
        return [show(median(self.seconds)), show(int(median(run))), show(int(median(kept)))]


@click.command()
@click.option("--shape", type=click.Choice(list(SHAPES)), help="A random model of this shape, in place of --model.")
@click.option("--model", default=DEMO, show_default=True, help="A model, as `rnn-engine serve` takes it.")
@click.option("--documents", default=100, show_default=True, help="Documents of the collection.")
@click.option("--tokens", default=200, show_default=True, help="Tokens of a document.")
@click.option("--queries", default=5, show_default=True, help="Queries in each part.")
@click.option("--candidates", default=20, show_default=True, help="Documents that a query reranks.")
@click.option("--device", default="auto", show_default=True, help="The device, as `rnn-engine serve` takes it.")
@click.option("--slots", default=16, show_default=True, help="Sequences that run at a time.")
@click.option("--host-bytes", default=256 << 20, show_default=True, help="Memory for states.")
@click.option("--seed", default=0, show_default=True, help="The seed of texts and queries.")
def main(
    shape: str | None,
    model: str,
    documents: int,
    tokens: int,
    queries: int,
    candidates: int,
    device: str,
    slots: int,
    host_bytes: int,
    seed: int,
) -> None:
    """Print a table with the seconds, the tokens run and the tokens kept of a query, each the median of all queries."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = model if shape is None else write_random_model(SHAPES[shape], folder / f"{shape}.safetensors")
        chance = random.Random(seed)
        disk = DiskConfig(folder / "states", capacity=1 << 40)
        cache = CacheConfig(host_capacity=host_bytes, disk=disk)
        with LLM(file, device=device, num_slots=slots, cache=cache) as llm:
            words = _words(llm)
            texts = ["".join(chance.choice(words) for _ in range(tokens)).strip() for _ in range(documents)]
            asked = [_question(chance, chance.choice(texts)) for _ in range(2 * queries + 2)]
            notes = llm.collection("notes", folder / "documents")
            begun = time.perf_counter()
            for start in range(0, documents, _PART):
                notes.add(texts[start : start + _PART])
            click.echo(f"{documents} documents added in {time.perf_counter() - begun:.1f} s")
            first, following = _ask(notes, asked[:1], candidates), _ask(notes, asked[1 : queries + 1], candidates)
        state_bytes = sum(path.stat().st_size for path in disk.folder.iterdir())
        with LLM(file, device=device, num_slots=slots, cache=cache) as llm:
            notes = llm.collection("notes", folder / "documents")
            first_again = _ask(notes, asked[queries + 1 : queries + 2], candidates)
            restarted = _ask(notes, asked[queries + 2 :], candidates)
        with LLM(file, device=device, num_slots=slots, cache=None) as llm:
            notes = llm.collection("notes", folder / "documents")
            anew = _ask(notes, asked[:1], candidates)
            everything = _all_anew(llm, asked[0], texts)
    rows = {
        "first query": first,
        "next queries": following,
        "first query after a restart": first_again,
        "next queries after a restart": restarted,
        "without kept states, same candidates": anew,
    }
    click.echo(f"states on disk: {state_bytes / 2**20:.0f} MiB\n")
    click.echo("| | seconds | tokens run | tokens kept |\n|---|---|---|---|")
    for what, each in rows.items():
        click.echo(f"| {what} | {' | '.join(each.cells())} |")
    click.echo(f"| without kept states, all documents (computed) | | {show(everything)} | 0 |")
    run = median(each.tokens_run for each in following.found)
    again = median(each.tokens_run for each in anew.found)
    click.echo(
        f"\ntimes fewer tokens: {again / run:.1f} for the same candidates, {everything / run:.1f} for all documents"
    )


def _words(llm: LLM) -> list[str]:
    """Return words that are one token each, with a space before."""
    pieces = (llm.detokenize([token]) for token in range(1, llm.engine.info.shape.vocab_size - 1))
    return [piece for piece in pieces if re.fullmatch(" [a-z]{3,8}", piece)][:_NUM_WORDS]


def _question(chance: random.Random, text: str) -> str:
    return " ".join(chance.sample(text.split(), _QUERY_WORDS))


def _all_anew(llm: LLM, query: str, texts: Sequence[str]) -> int:
    """Return the tokens of the prompts for a query and all texts, without the examples that prompts share."""
    pairs = [(query, text) for text in texts]
    return num_prompt_tokens(relevance_prompts(llm.engine, pairs, document_first=True))


def _ask(notes: Collection, queries: Sequence[str], candidates: int) -> Asked:
    found, seconds = [], []
    for query in queries:
        begun = time.perf_counter()
        found.append(notes.query(query, candidates=candidates))
        seconds.append(time.perf_counter() - begun)
    return Asked(found, seconds)


if __name__ == "__main__":
    main()
