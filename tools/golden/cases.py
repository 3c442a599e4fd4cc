"""The models and token sequences of the golden files, read from cases.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rnn_engine.types import ModelShape
from rnn_engine.versions.v7.layout import AdapterRanks
from tests.support.models import deep_embedded, tiny_shape
from tests.support.older_models import tiny_v4, tiny_v5, tiny_v6


@dataclass(frozen=True, slots=True)
class Case:
    """One golden file: a model with random weights, and the number of random tokens to run through it."""

    name: str
    shape: ModelShape
    seed: int
    num_tokens: int
    layer0_v: bool = True  # True if the file holds layer 0's v0, v1, v2, which are never read
    with_gradients: bool = False  # True to also compute gradients of the loss with respect to the initial state


_SHAPES: Mapping[str, Callable[..., ModelShape]] = {
    "v4": tiny_v4,
    **{version: partial(tiny_v5, version) for version in ("v5.0", "v5.1", "v5.2")},
    "v6": tiny_v6,
    "v7": tiny_shape,
    "v7-deepembed": lambda **sizes: deep_embedded(tiny_shape(**sizes)),
}


def _read_case(name: str, version: str, sizes: Mapping[str, Any], **rest: Any) -> Case:  # noqa: ANN401
    ranks = {"ranks": AdapterRanks(**sizes["ranks"])} if "ranks" in sizes else {}
    return Case(name, _SHAPES[version](**{**sizes, **ranks}), **rest)


_TEXT = Path(__file__).with_suffix(".toml").read_text("utf-8")
CASES = tuple(_read_case(name, **table) for name, table in tomllib.loads(_TEXT).items())
