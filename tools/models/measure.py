"""What a weight format, or a file, makes of a model: its error against the reference in f64, and its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import get_args

import numpy as np

from rnn_engine.cli.generate import run_logits
from rnn_engine.forward import GpuRunner
from rnn_engine.loading.runner import load_runner
from rnn_engine.reference import Array
from rnn_engine.types import Model, ModelShape
from rnn_engine.versions.v5.layout import VersionV5
from tests.support.models import deep_embedded, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6
from tests.support.reference import mean_divergence, relative_error

_V7 = tiny_shape(head_size=64)
SHAPES: Sequence[ModelShape] = (
    tiny_v4(),
    *(tiny_v5(version) for version in get_args(VersionV5)),
    tiny_v6(ffn=128),
    _V7,
    deep_embedded(_V7),
)
"""A small one of every version."""


def load_on_device(model: Model, weights: str) -> GpuRunner:
    """Put a model on the first device."""
    runner = load_runner(model, weights=weights)
    assert isinstance(runner, GpuRunner)
    return runner


def some_tokens(shape: ModelShape, count: int = 64) -> list[int]:
    return [(7 * position + 3) % shape.vocab_size for position in range(count)]


def measure(model: Model, tokens: list[int], weights: str, expected: Array) -> list[str]:
    """Return the cells of a row: error, divergence, megabytes of matrices."""
    with closing(load_on_device(model, weights)) as runner:
        logits = run_logits(runner, tokens, runner.max_rows, lambda *_: None, None)
        size = f"{runner.weight_bytes / 1e6:.2f}"
    error, divergence = relative_error(logits.astype(np.float64), expected), mean_divergence(expected, logits)
    return [f"{error:.1e}", f"{divergence:.1e}", size]


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)) + "\n"
