"""`python -m tools.bench.retrieval`: what queries of a collection take, with and without the states of documents.

Documents of random words are added to a collection, and queries of a few of their words are asked: the first and the
next ones, then again after a restart that reads all states from the disk, then by a model that keeps no states. One row
is computed: the tokens of a query that reranks all documents anew, as without a collection. Seconds are by the clock,
and of all processors together, which on a software device depend less on other work of the machine.

With `--torch`, the package rwkv-emb searches the same documents with the same queries from states that it keeps. The
models are random, so scores show only that both sides compute the same.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import click
import numpy as np

from rnn_engine import LLM, Collection, Search
from rnn_engine.convert.convert import convert_model
from rnn_engine.demo import DEMO
from rnn_engine.loading.runner import open_model
from rnn_engine.operations.embedding import end_of_sentence
from rnn_engine.operations.relevance import num_prompt_tokens, relevance_prompts
from rnn_engine.versions.v7.layout import ShapeV7
from rnn_engine_states.cache.config import CacheConfig, DiskConfig
from tests.support.models import embedding_shape, random_model, reranker_shape, save_safetensors
from tools.bench.peers import SHAPES
from tools.bench.retrieval_torch import Outcome, Task, now, since
from tools.bench.turns import HERE, show

_NUM_WORDS = 500  # different ones
_QUERY_WORDS = 8
_PART = 32  # documents that are added at a time
_SHAPES: Final = {name: shape for name, shape in SHAPES.items() if isinstance(shape, ShapeV7)}


@dataclass(frozen=True, slots=True)
class Asked:
    """The results of some queries, and the seconds that each took: by the clock, and of all processors together."""

    found: Sequence[Search]
    seconds: Sequence[tuple[float, float]]

    @property
    def tokens_run(self) -> float:
        return median(each.tokens_run for each in self.found)

    def cells(self) -> list[str]:
        """Return the medians of seconds, tokens run and tokens kept, as cells of a table."""
        kept = median(sum(cost.cached_tokens for cost in each.costs) for each in self.found)
        return [*_medians(self.seconds), show(int(self.tokens_run)), show(int(kept))]


@click.command()
@click.option("--shape", type=click.Choice(list(_SHAPES)), help="A random pair of this shape, in place of --model.")
@click.option("--model", default=DEMO, show_default=True, help="A model, as `rnn-engine serve` takes it.")
@click.option("--documents", default=100, show_default=True, help="Documents of the collection.")
@click.option("--tokens", default=200, show_default=True, help="Tokens of a document.")
@click.option("--queries", default=5, show_default=True, help="Queries in each part.")
@click.option("--candidates", default=20, show_default=True, help="Documents that a query reranks.")
@click.option("--device", default="0", show_default=True, help="The device, as `rnn-engine serve` takes it.")
@click.option("--slots", default=16, show_default=True, help="Sequences that run at a time.")
@click.option("--host-bytes", default=256 << 20, show_default=True, help="Memory for states.")
@click.option("--seed", default=0, show_default=True, help="The seed of texts and queries.")
@click.option("--torch", "python", type=click.Path(exists=True), help="A Python with torch and rwkv-emb; with --shape.")
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
    python: str | None,
) -> None:
    """Print a table with the seconds, the tokens run and the tokens kept of a query, each the median of all queries."""
    if python is not None and shape is None:
        raise click.UsageError("--torch needs --shape")
    with TemporaryDirectory() as name:
        folder = Path(name)
        file, reranker = (model, None) if shape is None else _write_pair(_SHAPES[shape], folder)
        chance = random.Random(seed)
        disk = DiskConfig(folder / "states", capacity=1 << 40)
        cache = CacheConfig(host_capacity=host_bytes, disk=disk)
        with LLM(file, device=device, num_slots=slots, cache=cache, reranker=reranker) as llm:
            words = _words(llm)
            texts = ["".join(chance.choice(words) for _ in range(tokens)).strip() for _ in range(documents)]
            asked = [_question(chance, chance.choice(texts)) for _ in range(2 * queries + 2)]
            notes = llm.collection("notes", folder / "documents")
            begun = now()
            for start in range(0, documents, _PART):
                part = range(start, min(start + _PART, documents))
                notes.add([{"id": str(number), "text": texts[number]} for number in part])
                click.echo(f"{part.stop} documents added", err=True)
            click.echo(f"{documents} documents added in {_seconds(since(begun))}")
            first, following = _ask(notes, asked[:1], candidates), _ask(notes, asked[1 : queries + 1], candidates)
            if python is not None:
                task = _make_task(llm, Path(file), Path(str(reranker)), texts, asked[: queries + 1], candidates)
        state_bytes = sum(path.stat().st_size for path in disk.folder.iterdir())
        with LLM(file, device=device, num_slots=slots, cache=cache, reranker=reranker) as llm:
            notes = llm.collection("notes", folder / "documents")
            first_again = _ask(notes, asked[queries + 1 : queries + 2], candidates)
            restarted = _ask(notes, asked[queries + 2 :], candidates)
        with LLM(file, device=device, num_slots=slots, cache=None, reranker=reranker) as llm:
            notes = llm.collection("notes", folder / "documents")
            anew = _ask(notes, asked[:1], candidates)
            everything = _all_anew(llm, asked[0], texts)
        outcome = None if python is None else _run_torch(python, task)
    rows = {
        "first query": first.cells(),
        "next queries": following.cells(),
        "first query after a restart": first_again.cells(),
        "next queries after a restart": restarted.cells(),
        "without kept states, same candidates": anew.cells(),
        "without kept states, all documents (computed)": ["", "", show(everything), "0"],
    }
    if outcome is not None:
        rows["rwkv-emb on torch, next queries"] = [*_medians(outcome.seconds[1:]), *following.cells()[2:]]
    click.echo(f"states on disk: {state_bytes / 2**20:.0f} MiB\n")
    click.echo("| | seconds | of processors | tokens run | tokens kept |\n|---|---|---|---|---|")
    for what, cells in rows.items():
        click.echo(f"| {what} | {' | '.join(cells)} |")
    click.echo(
        f"\ntimes fewer tokens: {anew.tokens_run / following.tokens_run:.1f} for the same candidates, "
        f"{everything / following.tokens_run:.1f} for all documents"
    )
    if outcome is not None:
        _compare([*first.found, *following.found], outcome)


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


def _question(chance: random.Random, text: str) -> str:
    return " ".join(chance.sample(text.split(), _QUERY_WORDS))


def _all_anew(llm: LLM, query: str, texts: Sequence[str]) -> int:
    """Return the tokens of the prompts for a query and all texts, without the examples that prompts share."""
    pairs = [(query, text) for text in texts]
    return num_prompt_tokens(relevance_prompts(llm.engine, pairs, document_first=True))


def _ask(notes: Collection, queries: Sequence[str], candidates: int) -> Asked:
    found, seconds = [], []
    for query in queries:
        begun = now()
        found.append(notes.query(query, top_n=candidates, candidates=candidates))
        seconds.append(since(begun))
    return Asked(found, seconds)


def _make_task(
    llm: LLM, embedding: Path, reranker: Path, texts: Sequence[str], queries: Sequence[str], candidates: int
) -> Task:
    """Return the same documents and queries as tokens for the package, which reads .pth files."""
    files = []
    for file in (embedding, reranker):
        files.append(str(file.with_suffix(".pth")))
        with open_model(file) as model:
            convert_model(model, Path(files[-1]), "f16")
    end = end_of_sentence(llm.engine.info.shape)
    abouts = relevance_prompts(llm.engine, [("", text) for text in texts])
    asking = relevance_prompts(llm.engine, [(query, texts[0]) for query in queries])
    return Task(
        embedding=files[0],
        reranker=files[1],
        documents=[[*llm.tokenize(text), end] for text in texts],
        begins=[list(prompt.tokens[: prompt.num_document]) for prompt in abouts],
        queries=[[*llm.tokenize(query), end] for query in queries],
        asked=[list(prompt.tokens[prompt.num_document :]) for prompt in asking],
        candidates=candidates,
    )


def _run_torch(python: str, task: Task) -> Outcome:
    command = [python, "-m", "tools.bench.retrieval_torch"]
    done = subprocess.run(
        command, cwd=HERE, check=True, input=json.dumps(asdict(task)), stdout=subprocess.PIPE, text=True
    )
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def _compare(found: Sequence[Search], outcome: Outcome) -> None:
    """Print how far the package's candidates and scores are from those of this engine."""
    differences, missed, total = [0.0], 0, 0
    for search, theirs in zip(found, outcome.found, strict=True):
        ours = {hit.document.id: hit.score for hit in search.hits}
        total += len(ours)
        missed += len(ours.keys() - theirs.keys())
        differences += [abs(score - theirs[number]) for number, score in ours.items() if number in theirs]
    click.echo(f"rwkv-emb on torch: documents added in {_seconds(outcome.adding)}")
    click.echo(f"{missed} of {total} documents are not among its candidates; scores differ by {max(differences):.1e}")


def _medians(seconds: Sequence[tuple[float, float]]) -> list[str]:
    return [show(median(each)) for each in zip(*seconds, strict=True)]


def _seconds(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:.1f} s ({seconds[1]:.1f} s of processors)"


if __name__ == "__main__":
    main()
