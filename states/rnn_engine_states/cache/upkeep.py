"""Make a cache with the configured tiers, and run its background work on the thread that owns it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from rnn_engine.types import ModelShape
from rnn_engine_states.cache.browse import SummaryChanges
from rnn_engine_states.cache.cache import StateCache
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.cache.tiers.device import DeviceTier, HostTier
from rnn_engine_states.cache.tiers.disk import DiskTier
from rnn_engine_states.cache.tiers.shared import SharedTier
from rnn_engine_states.cache.tiers.tier import LiveStates, SlotPool, Tier
from rnn_engine_states.shared.opening import OpenStore


def make_cache(
    shape: ModelShape,
    model: str,
    live: LiveStates,
    config: CacheConfig | None = None,
    pool: SlotPool | None = None,
    writer: Executor | None = None,
    clock: Callable[[], float] = time.monotonic,
    store: OpenStore | None = None,
) -> StateCache:
    """Return a cache with the configured tiers: the device's `pool` if given, host memory, disk, the shared store.

    `model` is the fingerprint of all settings that must be equal for a state to be continued: weights and their format.
    `writer` writes the files; None makes one. `clock` returns seconds and never goes back. `store` stays
    open when the cache is closed.
    """
    config = config or CacheConfig()
    tiers: list[Tier] = []
    device_bytes = 0 if pool is None else pool.num_slabs * pool.slab_bytes
    if pool is not None:
        tiers.append(DeviceTier(pool, config.index_bytes(device_bytes) // 2))
    tiers.append(HostTier(shape, config.host_capacity, config.host_precision))
    if (disk := config.disk) is not None:
        writer = writer or ThreadPoolExecutor(1, thread_name_prefix="state-writer")
        reader = ThreadPoolExecutor(1, thread_name_prefix="state-reader")
        tiers.append(DiskTier(disk, model, shape, writer, reader))
    if store is not None:
        max_record_bytes = min(store.config.index_bytes, config.index_bytes(device_bytes) // 2)
        from rnn_engine_states.shared.checkpoints import (
            CheckpointStore,  # needs an extra; an open store shows that it is installed
        )

        checkpoints = CheckpointStore(store.client, store.config.ttl)
        tiers.append(SharedTier(store, checkpoints, model, shape, max_record_bytes))
    return StateCache(live, tiers, config, clock)


logger = logging.getLogger(__name__)

_WRITE_BEHIND_SECONDS = 1.0  # between two searches for states that are old enough to be written


class CacheUpkeep:
    """Writes a cache's states to slow tiers by age, and drops unreachable ones, for one event loop."""

    def __init__(
        self, cache: StateCache, call: Callable[[Callable[[], None]], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Write states to slow tiers every second; `call` runs its argument on the thread that owns `cache`."""
        self._cache = cache
        self._call = call
        self._loop = loop
        self._stopped = False
        self._next: asyncio.TimerHandle | None = None
        if cache.any_slow:
            self._write_behind()

    def stop(self) -> None:
        """Stop the periodic writing of states. When its thread ends, the cache writes the remaining states itself."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()  # and drop the reference to the cache

    def forget_root(self, root: str) -> None:
        """Drop from the cache all checkpoints that start from the state with this digest. For any thread."""
        self._do(partial(self._cache.drop_state, root), "states that no request can reach stay in it")

    def changes(self, since: int | None) -> SummaryChanges | None:
        """Return the summary's changes after version `since`; at the first call, make it and return None."""
        if self._cache.summary is None:
            self._do(self._cache.summarise, "its contents are not reported")
            return None
        return self._cache.summary.changes(since)

    def _write_behind(self) -> None:
        """Write to the slow tiers the states that have reached the configured age, and again every second."""
        if self._stopped:
            return
        if self._cache.has_unwritten:
            self._do(self._cache.write_behind, "some states are not written to disk yet")
        self._next = self._loop.call_later(_WRITE_BEHIND_SECONDS, self._write_behind)

    def _do(self, action: Callable[[], object], consequence: str) -> None:
        """Run `action` on the cache's thread; if it fails, log that with its `consequence` in words."""

        def call() -> None:
            try:
                action()
            except Exception:
                logger.exception("the cache of states failed; %s", consequence)

        self._call(call)
