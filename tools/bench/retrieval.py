"""`python -m tools.bench.retrieval`: what queries of a collection take, with and without the states of documents.

Documents of random words are added to a collection, and queries of a few of their words are asked, then again after a
restart that reads all states from the disk, then by a model that keeps no states. One row is computed: the tokens of a
query that reranks all documents anew, as without a collection. Seconds are by the clock, and of all processors
together, which on a software device depend less on other work of the machine.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
import numpy as np

from rnn_engine import LLM, Collection
from rnn_engine.demo import DEMO
from rnn_engine.operations.relevance import num_prompt_tokens, relevance_prompts
from rnn_engine.versions.v7.layout import ShapeV7
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.models import embedding_shape, random_model, reranker_shape, save_safetensors
from tools.bench.peers import SHAPES
from tools.bench.turns import show
from tools.markdown import table

_NUM_WORDS = 500  # different ones
_QUERY_WORDS = 8
_PART = 32  # documents that are added at a time
_SLOTS = 16
_SHAPES = {name: shape for name, shape in SHAPES.items() if isinstance(shape, ShapeV7)}
_HEAD = ("query", "seconds", "of processors", "tokens run", "tokens kept")


@click.command()
@click.option("--shape", type=click.Choice(list(_SHAPES)), help="A random pair of this shape, in place of --model.")
@click.option("--model", default=DEMO, show_default=True, help="A model, as `rnn-engine serve` takes it.")
@click.option("--documents", default=100, show_default=True, help="Documents of the collection.")
@click.option("--tokens", default=200, show_default=True, help="Tokens of a document.")
@click.option("--queries", default=5, show_default=True, help="Queries in each part.")
@click.option("--candidates", default=20, show_default=True, help="Documents that a query reranks.")
@click.option("--device", default="0", show_default=True, help="The device, as `rnn-engine serve` takes it.")
def main(
    shape: str | None, model: str, documents: int, tokens: int, queries: int, candidates: int, device: str
) -> None:
    """Print a table with the seconds, the tokens run and the tokens kept of a query, each the median of all queries."""
    chance = random.Random(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        file, reranker = (model, None) if shape is None else _write_pair(_SHAPES[shape], folder)
        cache = CacheConfig(host_capacity=256 << 20, disk=DiskConfig(folder / "states", capacity=1 << 40))

        def load(cache: CacheConfig | None) -> LLM:
            return LLM(file, device=device, num_slots=_SLOTS, cache=cache, reranker=reranker)

        with load(cache) as llm:
            words = _words(llm)
            texts = ["".join(chance.choices(words, k=tokens)).strip() for _ in range(documents)]
            asked = [" ".join(chance.sample(chance.choice(texts).split(), _QUERY_WORDS)) for _ in range(2 * queries)]
            notes = llm.collection("notes", folder / "documents")
            for start in range(0, documents, _PART):
                part = range(start, min(start + _PART, documents))
                notes.add([{"id": str(number), "text": texts[number]} for number in part])
                click.echo(f"{part.stop} documents added", err=True)
            rows = [("with kept states", *_ask(notes, asked[:queries], candidates))]
            everything = num_prompt_tokens(
                relevance_prompts(llm.engine, [(asked[0], text) for text in texts], document_first=True)
            )
        with load(cache) as llm:
            again = _ask(llm.collection("notes", folder / "documents"), asked[queries:], candidates)
            rows.append(("with kept states, after a restart", *again))
        with load(None) as llm:
            anew = _ask(llm.collection("notes", folder / "documents"), asked[:1], candidates)
            rows.append(("without, same candidates", *anew))
    rows.append(("without, all documents (computed)", "", "", show(everything), "0"))
    click.echo(table(_HEAD, rows))


def _write_pair(shape: ShapeV7, folder: Path) -> tuple[str, str]:
    """Write an embedding model and a reranker with random weights in f16, and return their files."""
    models = {"embedding": embedding_shape(shape), "reranker": reranker_shape(shape)}
    embedding, reranker = (
        str(save_safetensors(random_model(each, 1, np.float16, layer0_v=False), folder / f"{name}.safetensors"))
        for name, each in models.items()
    )
    return embedding, reranker


def _words(llm: LLM) -> list[str]:
    """Return words that are one token each, with a space before."""
    pieces = (llm.detokenize([token]) for token in range(1, llm.engine.info.shape.vocab_size - 1))
    return [piece for piece in pieces if re.fullmatch(" [a-z]{3,8}", piece)][:_NUM_WORDS]


def _ask(notes: Collection, queries: Sequence[str], candidates: int) -> tuple[str, str, str, str]:
    """Return the medians of seconds, tokens run and tokens kept of some queries."""
    found, clock, processors = [], list[float](), list[float]()
    for query in queries:
        begun, cpu = time.perf_counter(), time.process_time()
        found.append(notes.query(query, top_n=candidates, candidates=candidates))
        clock.append(time.perf_counter() - begun)
        processors.append(time.process_time() - cpu)
    run = median(each.tokens_run for each in found)
    kept = median(sum(cost.cached_tokens for cost in each.costs) for each in found)
    return show(median(clock)), show(median(processors)), show(int(run)), show(int(kept))


if __name__ == "__main__":
    main()
