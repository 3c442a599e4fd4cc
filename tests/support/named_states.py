"""Small random named states, a clock that only the test advances, and calls that wait for their result."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rnn_engine.errors import NotFoundError
from rnn_engine.types import F32, ModelShape, State
from rnn_engine_states.files.exchange import StateFiles
from rnn_engine_states.files.full import SavedState, full_state_file, write_file
from rnn_engine_states.files.reading import LAYOUT_KEY, Layout, LoadedState, StateForm, tuned_from_state
from rnn_engine_states.frozen import FrozenState, freeze_state
from rnn_engine_states.named.entry import NamedState, Retention
from rnn_engine_states.named.quota import DEFAULT_CAPACITY, Quota
from rnn_engine_states.named.store import LocalTable, SavedStates, StateStore
from rnn_engine_states.named.table import DEFAULT_MAX_NAMES, StateUsage
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


def save_full_state(path: Path, saved: SavedState) -> None:
    """Write a full-state file of an RWKV-7 model."""
    write_file(path, *full_state_file(saved, "v7"))


def some_initial(seed: int = 0) -> FrozenState:
    return freeze_state(some_state(seed), SHAPE, "test", num_tokens=3, last_tokens=(1, 2, 3))


class BlockingStates:
    """States of this process whose calls wait for their result, on any thread, also beside an event loop that runs."""

    def __init__(self, table: LocalTable) -> None:
        self.table = table
        self.store = StateStore(table)
        self.files = table.files

    @property
    def default(self) -> NamedState | None:
        return _wait_for(self.store.default())

    def entries(self, namespace: str | None = None) -> tuple[NamedState, ...]:
        with self.table.locked() as table:
            entries = table.entries()
        return tuple(entry for entry in entries if namespace in (None, entry.namespace))

    def room_of(self, namespace: str) -> tuple[int, int]:
        with self.table.locked() as table:
            listing = table.listing(namespace)
        return listing.num_bytes, listing.capacity

    def usage(self) -> StateUsage:
        return self.store.usage()

    def seconds_left(self, entry: NamedState) -> float | None:
        with self.table.locked() as table:
            return table.shown(entry).expires_in

    def on_forgotten(self, forget: Callable[[str], None]) -> None:
        self.table.on_forgotten(forget)

    def add(self, loaded: LoadedState, name: str, source: str) -> NamedState:
        return self.table.add(loaded, name, source)

    def add_file(self, path: Path, name: str | None = None, key: uuid.UUID | None = None) -> NamedState:
        return self.table.add_file(path, name, key)

    def set_default(self, name: str | None) -> None:
        self.table.set_default(name)

    def get(self, name_or_id: str) -> NamedState:
        return _wait_for(self.store.get(name_or_id))

    def find(self, name_or_id: str) -> NamedState | None:
        return _wait_for(self.store.find(name_or_id))

    def missing(self, name_or_id: str, namespace: str) -> NotFoundError:
        with self.table.locked() as table:
            return table.missing(name_or_id, namespace)

    def check_place(self, name: str, retention: Retention, num_bytes: int) -> None:
        _wait_for(self.store.check_place(name, retention, num_bytes))

    def put(
        self,
        name: str,
        frozen: FrozenState,
        retention: Retention,
        *,
        source: str,
        form: StateForm = "full",
        key: uuid.UUID | None = None,
    ) -> NamedState:
        return _wait_for(self.store.put(name, frozen, retention, source=source, form=form, key=key))

    def compare_and_set(self, old: NamedState, frozen: FrozenState, *, source: str) -> NamedState:
        return _wait_for(self.store.compare_and_set(old, frozen, source=source))

    def fork(self, name_or_id: str, names: Sequence[str], retention: Retention) -> tuple[NamedState, ...]:
        return _wait_for(self.store.fork(name_or_id, names, retention))

    def move(self, name_or_id: str, name: str, retention: Retention) -> NamedState:
        return _wait_for(self.store.move(name_or_id, name, retention))

    def delete(self, name_or_id: str) -> NamedState:
        return _wait_for(self.store.delete(name_or_id))


T = TypeVar("T")


def _wait_for(call: Coroutine[Any, Any, T]) -> T:
    """Run a call to its end, in an event loop on another thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, call).result()


def advance(states: BlockingStates, old: NamedState, frozen: FrozenState, source: str = "advance") -> NamedState:
    """Replace the values of a state that nobody has changed meanwhile."""
    return states.compare_and_set(old, frozen, source=source)


def make_states(
    folder: Path | None = None,
    *,
    shape: ModelShape = SHAPE,
    capacity: int = DEFAULT_CAPACITY,
    max_names: int = DEFAULT_MAX_NAMES,
    clock: Clock | None = None,
    model: str = FINGERPRINT,
    quota: Quota | None = None,
) -> BlockingStates:
    """Return states whose store keeps persistent ones in `folder`, including those already in that folder."""
    files = StateFiles(shape, model, folder)
    saved = None if folder is None else SavedStates(files, folder)
    table = LocalTable(
        files, capacity=capacity, max_names=max_names, saved=saved, clock=clock or Clock(), quota=quota or Quota()
    )
    table.load_saved()
    return BlockingStates(table)


def put(states: BlockingStates, name: str, seed: int = 0, keeping: Retention = KEPT) -> NamedState:
    return states.put(name, some_initial(seed), keeping, source="test")


def names(states: BlockingStates) -> list[str]:
    return [entry.name for entry in states.entries()]
