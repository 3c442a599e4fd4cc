"""A device without a model: the states in its slots and slabs show exactly which tokens ran through them.

Every value is a whole number below 2039, which both f32 and f16 hold, so copies through any tier must be equal.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from rnn_engine.types import F32, ModelShape, PendingState, ReadyState, State
from rnn_engine_states.cache.cache import Match, StateCache
from rnn_engine_states.cache.checkpoint import CheckpointKind
from rnn_engine_states.cache.tiers.fetches import Fetch
from rnn_engine_states.cache.tiers.tier import SlotPool
from tests.support.models import tiny_shape

ROOT = "none"

_MODULUS = 2039


def toy_shape(vocab: int = 24) -> ModelShape:
    """Return a shape with a state of 384 bytes and, by default, logits of 96 bytes."""
    return tiny_shape(layers=2, width=8, head_size=4, ffn=8, vocab=vocab)


class ToyRead:
    """A state on its way to the host."""

    def __init__(self, device: ToyDevice, state: dict[str, F32]) -> None:
        self._device = device
        self._state = state
        self.arrived = False

    def done(self) -> bool:
        return self.arrived

    def result(self) -> dict[str, F32]:
        self._device.num_waits += not self.arrived
        self.arrived = True
        return self._state


class ToyDevice(SlotPool):
    """The live slots and the pool of slabs of one model; see `rnn_engine_states.cache.tiers.tier`."""

    def __init__(self, shape: ModelShape, num_slots: int = 2, num_slabs: int = 0, *, slow_reads: bool = False) -> None:
        """With `slow_reads`, a state that is being read arrives at the next `arrive`, or when a caller waits for it."""
        self.shape = shape
        self.slow_reads = slow_reads
        self.reads: list[ToyRead] = []  # begun since the last `arrive`
        self.num_waits = 0  # the number of reads that a caller waited for
        self._slots = [shape.initial_state() for _ in range(num_slots)]
        self.num_slabs = num_slabs
        self.slab_bytes = shape.state_bytes
        self.slabs: dict[int, dict[str, F32]] = {}  # handle -> state
        self._next_handle = num_slots
        self._steps = {
            name: np.arange(array.size, dtype=np.float32).reshape(array.shape) + number + 3
            for number, (name, array) in enumerate(shape.initial_state().items())
        }
        self._factors = {name: steps % 7 + 2 for name, steps in self._steps.items()}

    def run(self, tokens: Sequence[int], slot: int = 0) -> None:
        """Advance a slot's state by tokens."""
        for token in tokens:
            for name, array in self._slots[slot].items():
                self._slots[slot][name] = (array * self._factors[name] + token + self._steps[name]) % _MODULUS

    def start(self, tokens: Sequence[int], slot: int = 0) -> None:
        """Run tokens from the initial state."""
        self.write_state(slot, None)
        self.run(tokens, slot)

    def read_state(self, slot: int) -> dict[str, F32]:
        return {name: array.copy() for name, array in self._slots[slot].items()}

    def start_read(self, source: int) -> PendingState:
        """Begin to read a slot or a slab. Handles of slabs are greater than the numbers of slots."""
        state = self._slots[source] if source < len(self._slots) else self.slabs[source]
        copy = {name: array.copy() for name, array in state.items()}
        if not self.slow_reads:
            return ReadyState(copy)
        self.reads.append(ToyRead(self, copy))
        return self.reads[-1]

    def arrive(self) -> None:
        """Let all states that are being read arrive."""
        for read in self.reads:
            read.arrived = True
        self.reads.clear()

    def write_state(self, slot: int, state: State | None) -> None:
        source = self.shape.initial_state() if state is None else state
        self._slots[slot] = {name: array.copy() for name, array in source.items()}

    def save(self, slot: int) -> int:
        assert len(self.slabs) < self.num_slabs
        self._next_handle += 1
        self.slabs[self._next_handle] = self.read_state(slot)
        return self._next_handle

    def load(self, handle: int, slot: int) -> None:
        self.write_state(slot, self.slabs[handle])

    def free(self, handle: int) -> None:
        del self.slabs[handle]


def toy_state(shape: ModelShape, tokens: Sequence[int]) -> dict[str, F32]:
    """Return the state after `tokens`."""
    device = ToyDevice(shape, num_slots=1)
    device.run(tokens)
    return device.read_state(0)


def toy_logits(shape: ModelShape, tokens: Sequence[int]) -> F32:
    """Return the logits [V] after `tokens`."""
    return np.arange(shape.vocab_size, dtype=np.float32) * (sum(tokens) % 11) + len(tokens)


def keep(cache: StateCache, device: ToyDevice, tokens: Sequence[int], *, root: str = ROOT, logits: bool = True) -> bool:
    """Run tokens from the start, and insert the state after them into the cache."""
    device.start(tokens)
    row = toy_logits(device.shape, tokens) if logits else None
    kind = CheckpointKind.PROMPT_END
    return cache.insert(root, tokens, 0, kind=kind, logits=row)


def look_up(cache: StateCache, tokens: Sequence[int], limit: int | None = None, *, root: str = ROOT) -> Match:
    """Look up tokens, and wait until the state has been read, as a request does."""
    fetch: Fetch | None = None
    while True:
        ended = threading.Event()
        before, fetch = fetch, cache.prefetch(root, tokens, limit, on_done=ended.set)
        if before is not None:
            before.release()
        if fetch is not None and not fetch.done:
            assert ended.wait(timeout=60)
        elif fetch is None or not fetch.failed:
            match = cache.look_up(root, tokens, limit, fetch=fetch)
            if fetch is not None:
                fetch.release()
            return match


def same(first: State, second: State) -> bool:
    """Return True if two states are equal to the last bit."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
