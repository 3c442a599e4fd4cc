"""Writes docs/models.md: every version and every weight format against the reference in f64.

python -m tools.models
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
import numpy as np

from rnn_engine.cli.logits import run_logits
from rnn_engine.demo import model_path
from rnn_engine.forward import GpuRunner
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.forward.weight_formats import WEIGHT_FORMATS
from rnn_engine.loading.model import open_model
from rnn_engine.loading.runner import load_runner
from rnn_engine.reference.weights import Array
from rnn_engine.tokenizer import load_tokenizer
from rnn_engine.types import Model
from tests.support.answers import right_answers
from tests.support.models import deep_embedded, random_model, tiny_shape
from tests.support.older_models import OLDER_SHAPES
from tests.support.quantised import quantised
from tests.support.reference import forward, mean_divergence, relative_error
from tools.demo_model.corpus.mixture import held_out
from tools.demo_model.evaluate import SKILLS as ANSWERED

_OUTPUT = Path(__file__).parents[2] / "docs" / "models.md"
_SKILLS = ("arithmetic", "fact", "memory", "spell", "json_fields")
_LENGTH = 256  # tokens
_VERSION_FORMATS = ("f32", "f16", "int8", "int4")
_INTRODUCTION = """# Models and weight formats

Made by `python -m tools.models`. Error is the greatest difference of a logit from the numpy reference in f64 with the
file's weights, in parts of the greatest logit; KL is the mean divergence, in nats, of the next token's distribution
from the reference's. Below 8 bits the head and the
first layer are int8, unless it is asked for otherwise. The weights of these models are
numbers that f16 holds, so f16 loses nothing here. Speed depends on the device: see [performance](performance.md).
"""


def _measure(model: Model, tokens: list[int], weights: str, expected: Array) -> list[str]:
    """Return the cells of a row: error, divergence, bytes of matrices."""
    runner = load_runner(model, weights=weights)
    assert isinstance(runner, GpuRunner)
    with closing(runner):
        logits = run_logits(runner, tokens, runner.max_rows, lambda *_: None, None)
        size = f"{runner.weight_bytes / 1e6:.2f}"
    error, divergence = relative_error(logits.astype(np.float64), expected), mean_divergence(expected, logits)
    return [f"{error:.1e}", f"{divergence:.1e}", size]


def _table(first: str, rows: list[list[str]]) -> str:
    header = [first, "weights", "error", "KL", "matrices, MB"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)) + "\n"


def _version_rows() -> list[list[str]]:
    shape = tiny_shape()
    rows = []
    for each in (*OLDER_SHAPES, shape, deep_embedded(shape)):
        model = random_model(each, seed=1)
        tokens = [(7 * position + 3) % each.vocab_size for position in range(64)]
        expected, _ = forward(model, tokens, dtype=np.float64)
        rows += [[each.version, name, *_measure(model, tokens, name, expected)] for name in _VERSION_FORMATS]
    return rows


def _demo_rows() -> list[list[str]]:
    with open_model(model_path()) as model:
        tokenizer = load_tokenizer("auto", model_path(), model.shape.vocab_size)
        text = "".join(part for skill in _SKILLS for each in held_out(skill, 5) for part, _ in each.parts())
        tokens = list(tokenizer.encode(text))[:_LENGTH]
        expected, _ = forward(model, tokens, dtype=np.float64)
        return [["demo", name, *_measure(model, tokens, name, expected)] for name in WEIGHT_FORMATS]


def _skill_table() -> str:
    """Return how many of 100 held-out items of each skill the demo model has right with each format's weights."""
    lines = ["| weights | " + " | ".join(ANSWERED) + " |", "| --- |" + " --- |" * len(ANSWERED)]
    with open_model(model_path()) as model:
        tokenizer = load_tokenizer("auto", model_path(), model.shape.vocab_size)
        for name in WEIGHT_FORMATS:
            weights = quantised(model, WeightChoice.parse(name))
            right = (str(right_answers(weights, tokenizer, held_out(skill, 100))) for skill in ANSWERED)
            lines.append(f"| {name} | {' | '.join(right)} |")
    return "\n".join(lines) + "\n"


@click.command()
def main() -> None:
    """Measure on the first device and write docs/models.md."""
    runner = load_runner(random_model(tiny_shape(), seed=1))
    assert isinstance(runner, GpuRunner)
    with closing(runner):
        device = runner.device.info.name
    _OUTPUT.write_text(
        f"{_INTRODUCTION}\nOn {device}.\n"
        f"\n## The demo model, over {_LENGTH} tokens of held-out dialogues\n\n{_table('model', _demo_rows())}"
        "\n## Skills of the demo model: right answers of 100 held-out items, greedily, in numpy with these weights\n\n"
        f"{_skill_table()}"
        "\n## Small models of every version with random f32 weights: 2 layers, width 64, over 64 tokens\n\n"
        f"{_table('version', _version_rows())}"
    )


if __name__ == "__main__":
    main()
