"""The shared store: what it has is in a dictionary, and what is asked of it takes modelled time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from states.cache.checkpoint import CheckpointKind
from states.shared.checkpoints import Along, Listed
from states.shared.client import StoreCounters
from states.shared.entries import PathKeys
from tools.fleet_simulator.clock import Clock
from tools.fleet_simulator.hardware import Hardware, Link

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept:
    data: bytes
    has_logits: bool
    kind: str


class ModelledStore:
    """The states of all machines, at most `capacity`; the one that was unused for longest gives way."""

    def __init__(self, capacity: int, hardware: Hardware) -> None:
        self.link = Link(hardware.bandwidth)
        self.operations = 0
        self._capacity = capacity
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lengths: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, path: PathKeys, shortest: int, longest: int) -> Along:
        blocks = [block for block in path.blocks() if block.lengths_key in self._lengths]
        lengths = sorted(length for block in blocks for length in self._lengths[block.lengths_key])
        wanted = [length for length in lengths if shortest <= length <= longest]
        return Along(blocks[-1].start if blocks else 0, self._longest_of(path, wanted))

    def get(self, path: PathKeys) -> bytes | None:
        kept = self._kept.get(_key(path))
        if kept is None:
            return None
        self._kept.move_to_end(_key(path))
        return kept.data

    def renew(self, path: PathKeys, *, has_logits: bool) -> bool:
        kept = self._kept.get(_key(path))
        return kept is not None and kept.has_logits >= has_logits

    def put(self, path: PathKeys, data: bytes, *, has_logits: bool, kind: str) -> None:
        self._kept[_key(path)] = _Kept(data, has_logits, kind)
        self._kept.move_to_end(_key(path))
        self._lengths.setdefault(path.blocks()[-1].lengths_key, set()).add(path.length)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def delete(self, path: PathKeys) -> None:
        self._kept.pop(_key(path), None)

    def _longest_of(self, path: PathKeys, lengths: Sequence[int]) -> Listed | None:
        for length, key in reversed(list(zip(lengths, path.checkpoints(lengths), strict=True))):
            kept = self._kept.get(key)
            if kept is not None and (kept.has_logits or length < path.length):
                return Listed(length, kept.has_logits, CheckpointKind(kept.kind), len(kept.data))
        return None


class ModelledClient:
    """One machine's way to the store, in place of `StoreClient`, and of `CheckpointStore` above it.

    What is asked happens at once; the answer is there when a state has had time to travel.
    """

    refuses = refuses_reading = False

    def __init__(self, store: ModelledStore, hardware: Hardware, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.moved = 0  # bytes
        self._store = store
        self._hardware = hardware
        self._clock = clock
        self._loop = loop
        self._link = Link(hardware.bandwidth)
        self._states = 0  # that the operation under way has moved

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        self._states = 0
        self._store.operations += 1
        ended: Future[T] = Future()
        try:
            result = self._loop.run_until_complete(coroutine)
        except Exception as error:
            failed = error
            self._clock.at(self._arrival(), lambda: _end(ended, lambda: ended.set_exception(failed)))
        else:
            self._clock.at(self._arrival(), lambda: _end(ended, lambda: ended.set_result(result)))
        return ended

    def counters(self) -> StoreCounters:
        return StoreCounters()

    def close(self) -> None:
        """Do nothing: no connection is open."""

    async def find(self, path: PathKeys, shortest: int, longest: int) -> Along:
        return self._store.find(path, shortest, longest)

    async def get(self, path: PathKeys) -> bytes | None:
        data = self._store.get(path)
        self._states += data is not None
        return data

    async def renew(self, path: PathKeys, *, has_logits: bool) -> bool:
        return self._store.renew(path, has_logits=has_logits)

    async def put(self, path: PathKeys, data: bytes, *, has_logits: bool, kind: str) -> None:
        self._states += 1
        self._store.put(path, data, has_logits=has_logits, kind=kind)

    async def delete(self, path: PathKeys) -> None:
        self._store.delete(path)

    def _arrival(self) -> float:
        num_bytes, now = self._states * self._hardware.state_bytes, self._clock.now
        self.moved += num_bytes
        arrival = now + self._hardware.latency
        if num_bytes:
            arrival += max(self._link.carry(num_bytes, now), self._store.link.carry(num_bytes, now)) - now
        return arrival


def _end(future: Future[T], end: Any) -> None:  # noqa: ANN401
    if future.set_running_or_notify_cancel():
        end()


def _key(path: PathKeys) -> str:
    return path.checkpoints([path.length])[0]
