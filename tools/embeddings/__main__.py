"""`python -m tools.embeddings`: measure how well each layer, part and pooling tells topics apart, and baselines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import click
import numpy as np

from rnn_engine.demo import model_path
from rnn_engine.engine import Engine
from rnn_engine.loading.parts import assemble
from rnn_engine.loading.runner import load_runner, open_model
from rnn_engine.loading.settings import LoadSettings
from rnn_engine.operations.embedding import EmbeddingSettings, Layers, Pooling, finish_vector, part_vector, run_states
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.types import ModelShape, State
from rnn_engine.versions.v7.layout import ShapeV7
from tools.bench.random_model import RandomModel
from tools.embeddings.metrics import Labels, Vectors, gain, separation
from tools.embeddings.sentences import EVERYDAY, SMALL_WORLD, Topics
from tools.embeddings.skills import skill_questions

SETS = {"small-world": SMALL_WORLD, "everyday": EVERYDAY, "skills": skill_questions()}
FORMS = {"plain": "{}", "question": "User: {}\n\nAssistant:"}
POOLINGS: tuple[Pooling, ...] = ("key_norms", "value_norms", "key_means", "value_means", "none")


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True), default=model_path())
@click.option("--tokenizer", default="auto", show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option("--sets", default=",".join(SETS), show_default=True, help="Which sentences.")
@click.option("--forms", default=",".join(FORMS), show_default=True, help="As they are, or as a turn of a chat.")
def main(model: Path, tokenizer: str, device: str, sets: str, forms: str) -> None:
    """Print a table for every set of sentences and form: all settings on MODEL, and the baselines."""
    asyncio.run(_measure(model, tokenizer, device, sets.split(","), forms.split(",")))


async def _measure(model: Path, tokenizer: str, device: str, sets: Sequence[str], forms: Sequence[str]) -> None:
    async with (
        await Engine.load(model, LoadSettings(device, tokenizer)) as trained,
        _untrained(model, tokenizer, device) as random,
    ):
        print(f"{trained.info.model} on {trained.info.device}")
        for name in sets:
            for form in forms:
                await _table(trained, random, SETS[name], FORMS[form], f"{name}, {form}")


def _untrained(model: Path, tokenizer: str, device: str) -> Engine:
    """Return an engine with a model of the same shape and random weights."""
    with open_model(model) as opened:
        shape = opened.shape
    assert isinstance(shape, ShapeV7)  # what random weights are made for
    runner = load_runner(RandomModel(shape), device, num_slots=8)
    chosen = load_tokenizer(tokenizer, model, shape.vocab_size)
    return Engine(assemble(runner, chosen, model="untrained", device=device, weights="f16"))


async def _table(trained: Engine, untrained: Engine, topics: Topics, form: str, title: str) -> None:
    sentences = [form.format(sentence) for group in topics.values() for sentence in group]
    labels = np.repeat(np.arange(len(topics)), [len(group) for group in topics.values()])
    tokens = [trained.tokenize(sentence) for sentence in sentences]
    shape = trained.info.shape
    states, random = await _states(trained, tokens), await _states(untrained, tokens)
    print(f"\n{title}: {len(labels)} sentences of {len(topics)} topics, {np.mean([*map(len, tokens)]):.0f} tokens each")
    print(
        "| vector | numbers | nearest | reciprocal rank | precision | silhouette | nearest, centred | default gains |"
    )
    print("|" + " --- |" * 8)
    default = _vectors(states, EmbeddingSettings(), shape)
    for what, vectors in _bags(tokens, shape.vocab_size):
        _row(what, vectors, default, labels)
    for settings in _settings(shape):
        _row(_words(settings), _vectors(states, settings, shape), default, labels)
    for settings in (EmbeddingSettings(), EmbeddingSettings(pooling="none")):
        _row(f"untrained: {_words(settings)}", _vectors(random, settings, shape), default, labels)


async def _states(engine: Engine, tokens: Sequence[Sequence[int]]) -> list[State]:
    states: dict[int, State] = {}
    async with aclosing(run_states(engine, tokens)) as ends:
        async for number, end in ends:
            states[number] = end.state
    return [states[number] for number in range(len(tokens))]


def _bags(tokens: Sequence[Sequence[int]], vocab_size: int) -> Iterator[tuple[str, Vectors]]:
    counts = np.array([np.bincount(row, minlength=vocab_size) for row in tokens], np.float64)  # [S, V]
    rarity = np.log((1 + len(tokens)) / (1 + np.count_nonzero(counts, axis=0)))  # [V]
    yield "bag of tokens", counts
    yield "bag of tokens, rare ones weigh more", counts * rarity


def _settings(shape: ModelShape) -> Iterator[EmbeddingSettings]:
    layers: list[Layers] = [*range(shape.num_layers), "mean", "all"]
    parts: list[tuple[str, Pooling]] = [  # a shift has no pooling
        ("att_shift", "key_norms"),
        ("ffn_shift", "key_norms"),
        *(("wkv", pooling) for pooling in POOLINGS),
        ("all", "key_norms"),
    ]
    for part, pooling in parts:
        for layer in layers:
            yield EmbeddingSettings(layer, part, pooling, normalize=False)
    for pooling in ("key_norms", "none"):
        for dimensions in (64, 128, 256):
            yield EmbeddingSettings("all", "wkv", pooling, dimensions, normalize=False)


def _vectors(states: Sequence[State], settings: EmbeddingSettings, shape: ModelShape) -> Vectors:
    """Return the vectors of every setting, also those that are too long to be served."""
    return np.stack([finish_vector(part_vector(state, settings, shape), settings) for state in states])


def _words(settings: EmbeddingSettings) -> str:
    pooling = f" {settings.pooling}" if settings.part in (None, "wkv", "all") else ""
    projected = "" if settings.dimensions is None else f", projected to {settings.dimensions}"
    return f"{settings.part or 'wkv'}{pooling}, layer {settings.layer}{projected}"


def _row(what: str, vectors: Vectors, default: Vectors, labels: Labels) -> None:
    plain = separation(vectors, labels)
    centred = separation(vectors - vectors.mean(axis=0), labels)
    low, high = gain(default, vectors, labels)
    print(
        f"| {what} | {vectors.shape[1]} | {plain.nearest:.2f} | {plain.reciprocal_rank:.2f} | {plain.precision:.2f} "
        f"| {plain.silhouette:.2f} | {centred.nearest:.2f} | {low:+.2f} to {high:+.2f} |"
    )


if __name__ == "__main__":
    main()
