"""One machine of the fleet: the real scheduler and cache over what is modelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from rnn_engine.errors import RnnEngineError
from rnn_engine.requests import Finished, GenerateRequest, Started
from rnn_engine.scheduler import Delivery, Scheduler
from states.cache.browse import SummaryChanges
from states.cache.cache import StateCache
from states.cache.checkpoint import make_root
from states.cache.config import CacheConfig
from states.cache.tiers.device import HostTier
from states.cache.tiers.shared import SharedTier
from states.cache.tiers.tier import Tier
from states.frozen import NO_INITIAL_STATE
from states.shared.checkpoints import CheckpointStore
from states.shared.client import StoreClient, StoreUrl
from states.shared.config import StoreConfig
from tests.support.models import tiny_shape
from tools.fleet_simulator.clock import Clock
from tools.fleet_simulator.hardware import Hardware, ModelledRunner
from tools.fleet_simulator.store import ModelledClient
from tools.fleet_simulator.trace import VOCAB

SHAPE = tiny_shape(layers=1, width=8, head_size=4, ffn=8, vocab=VOCAB)
_COPY_BYTES = SHAPE.state_bytes + 4 * VOCAB
ROOT = make_root(NO_INITIAL_STATE, "")
_WRITE_SECONDS = 1.0  # from one look for states that are to be written to the next

OnStarted = Callable[[Started], None]
OnEnded = Callable[[Finished | RnnEngineError], None]


class Machine:
    """Runs requests one step after the other, in the simulation's time."""

    def __init__(self, name: str, hardware: Hardware, clock: Clock, client: ModelledClient | None) -> None:
        """`name` is one that no other machine has had; `client` is its way to the shared store, where there is one."""
        self.name = name
        self.outstanding = 0
        self.dead = False
        self._clock = clock
        self._front = hardware.front
        self._now = 0.0  # up to when its worker has come, which waits for steps
        self._stepping = False
        self._waiting: dict[int, tuple[OnStarted, OnEnded]] = {}
        self._next_key = 0
        runner = ModelledRunner(SHAPE, hardware, self._time, self._wait_until)
        self.cache = StateCache(runner, _tiers(hardware, client), cache_config(hardware), self._time)
        self.cache.summarise()
        self._scheduler = Scheduler(runner, lambda _: b"x", self.cache, clock=self._time, wake=self._wake_soon)
        if client is not None:
            self._write_behind()

    def ask(self, request: GenerateRequest, on_started: OnStarted, on_ended: OnEnded) -> None:
        """Run a request; the callbacks come when it has its first token and when it has ended."""
        key, self._next_key = self._next_key, self._next_key + 1
        self._waiting[key] = on_started, on_ended
        self.outstanding += 1
        self._clock.at(self._clock.now + self._front, lambda: self._submit(key, request))

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt its cache would save."""
        return self.cache.peek(ROOT, prompt)

    def cache_changes(self, since: int | None) -> SummaryChanges:
        """Return what has changed in the summary of its cache since a version of it."""
        assert self.cache.summary is not None
        return self.cache.summary.changes(since)

    def die(self, error: RnnEngineError) -> None:
        """End at once, and all that it runs with `error`."""
        self.dead = True
        waiting, self._waiting, self.outstanding = self._waiting, {}, 0
        for _, on_ended in waiting.values():
            on_ended(error)

    def _submit(self, key: int, request: GenerateRequest) -> None:
        if not self.dead:
            self._scheduler.submit(key, request)
            self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._clock.at(self._clock.now, self._step)

    def _step(self) -> None:
        self._stepping = False
        if self.dead or self._scheduler.wait_seconds() is None:
            return
        deliveries = self._scheduler.step()
        self._stepping = True
        self._clock.at(self._now, lambda: self._deliver(deliveries))

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            if delivery.key not in self._waiting:
                continue
            on_started, on_ended = self._waiting[delivery.key]
            if isinstance(delivery.outcome, Started):
                on_started(delivery.outcome)
            elif isinstance(delivery.outcome, Finished | RnnEngineError):
                del self._waiting[delivery.key]
                self.outstanding -= 1
                on_ended(delivery.outcome)
        self._step()

    def _time(self) -> float:
        return max(self._clock.now, self._now)

    def _wait_until(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def _write_behind(self) -> None:
        if self.dead:
            return
        if self.cache.has_unwritten:
            self.cache.write_behind()
        self._clock.at(self._clock.now + _WRITE_SECONDS, self._write_behind)


_INDEX_BYTES = 1 << 40  # no bound
_STORE = StoreConfig(StoreUrl.parse("valkey://simulated"))


def cache_config(hardware: Hardware) -> CacheConfig:
    """Return the settings of a machine's cache, which keeps states in memory alone."""
    host_capacity = hardware.cached_states * _COPY_BYTES
    return CacheConfig(host_capacity=host_capacity, device_capacity=0, index_capacity=_INDEX_BYTES)


def _tiers(hardware: Hardware, client: ModelledClient | None) -> list[Tier]:
    tiers: list[Tier] = [HostTier(SHAPE, cache_config(hardware).host_capacity, "f32")]
    if client is not None:
        way, store = cast("StoreClient", client), cast("CheckpointStore", client)
        tiers.append(SharedTier(_STORE, way, store, None, "model", SHAPE, _INDEX_BYTES))
    return tiers
