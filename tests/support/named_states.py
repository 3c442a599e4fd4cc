"""A registry of small random states, with a clock that only the test advances."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rnn_engine.types import F32, ModelShape, State
from states.files.exchange import StateFiles
from states.files.full import write_file
from states.files.reading import LAYOUT_KEY, Layout, tuned_from_state
from states.frozen import FrozenState, freeze_state
from states.named.entry import NamedState, Quota, Retention
from states.named.registry import DEFAULT_CAPACITY, DEFAULT_MAX_NAMES, SavedStates, StateRegistry
from tests.support.models import tiny_shape

SHAPE = tiny_shape(layers=2, width=8, head_size=4, ffn=8, vocab=10)
FINGERPRINT = "model"
STATE_BYTES = 4 * sum(array.size for array in SHAPE.initial_state().values())
KEPT = Retention()
PERSISTENT = Retention(persistent=True)


@dataclass
class Clock:
    """A clock that only the test advances."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def some_state(seed: int = 0, shape: ModelShape = SHAPE) -> dict[str, F32]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(array.shape).astype(np.float32) for name, array in shape.initial_state().items()
    }


def save_tuned_state(path: Path, state: State, shape: ModelShape, layout: Layout = "key_value") -> None:
    """Write a tuned-state safetensors file, by default in the layout that ai00 reads. The shifts are lost."""
    write_file(path, tuned_from_state(state, shape, layout), {LAYOUT_KEY: layout})


def some_initial(seed: int = 0) -> FrozenState:
    return freeze_state(some_state(seed), SHAPE, "test", num_tokens=3, last_tokens=(1, 2, 3))


def advance(states: StateRegistry, old: NamedState, frozen: FrozenState, source: str = "advance") -> NamedState:
    """Replace the values of a state that has not changed since `old` was read."""
    return states.compare_and_set(old, frozen, source=source)


def make_registry(
    folder: Path | None = None,
    *,
    shape: ModelShape = SHAPE,
    capacity: int = DEFAULT_CAPACITY,
    max_names: int = DEFAULT_MAX_NAMES,
    clock: Clock | None = None,
    model: str = FINGERPRINT,
    quota: Quota | None = None,
) -> StateRegistry:
    """Return a registry that keeps persistent states in `folder`, including those already in that folder."""
    files = StateFiles(shape, model, folder)
    saved = None if folder is None else SavedStates(files, folder)
    registry = StateRegistry(
        files, capacity=capacity, max_names=max_names, saved=saved, clock=clock or Clock(), quota=quota or Quota()
    )
    registry.load_saved()
    return registry


def put(states: StateRegistry, name: str, seed: int = 0, keeping: Retention = KEPT) -> NamedState:
    return states.put(name, some_initial(seed), keeping, source="test")


def names(states: StateRegistry) -> list[str]:
    return [entry.name for entry in states.entries()]
