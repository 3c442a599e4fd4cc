"""Making a cache with the tiers that a configuration asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rnn_engine.types import ModelShape
from states.cache.cache import StateCache
from states.cache.config import CacheConfig
from states.cache.device import DevicePool, LiveStates
from states.cache.tiers.device import DeviceTier
from states.cache.tiers.disk import DiskTier
from states.cache.tiers.host import HostTier
from states.cache.tiers.shared import SharedTier
from states.cache.tiers.tier import Tier
from states.cache.tiers.writer import BackgroundWriter, InlineWriter, Writer
from states.shared.opening import OpenStore


def make_cache(
    shape: ModelShape,
    model: str,
    live: LiveStates,
    config: CacheConfig | None = None,
    pool: DevicePool | None = None,
    writer: Writer | None = None,
    clock: Callable[[], float] = time.monotonic,
    store: OpenStore | None = None,
) -> StateCache:
    """A cache with the tiers that are configured: the device's `pool` where there is one, host memory, disk,
    the shared store.

    `model` is the fingerprint of whatever must be equal for a state to be continued: weights and their format.
    `writer` writes the files; None is one as configured. `clock` gives seconds that never go back.
    `store` stays open when the cache is closed.
    """
    config = config or CacheConfig()
    tiers: list[Tier] = []
    device_bytes = 0 if pool is None else pool.num_slabs * pool.slab_bytes
    if pool is not None:
        tiers.append(DeviceTier(pool, config.index_bytes(device_bytes) // 2))
    tiers.append(HostTier(shape, config.host_capacity, config.host_precision))
    if (disk := config.disk) is not None:
        if writer is None:
            writer = BackgroundWriter(disk.background_bytes) if disk.background_bytes > 0 else InlineWriter()
        reader = ThreadPoolExecutor(1, thread_name_prefix="state-reader")
        tiers.append(DiskTier(disk, model, shape, writer, reader))
    if store is not None:
        max_record_bytes = min(store.config.index_bytes, config.index_bytes(device_bytes) // 2)
        tiers.append(_shared_tier(store, model, shape, max_record_bytes))
    return StateCache(live, tiers, config, clock)


def _shared_tier(store: OpenStore, model: str, shape: ModelShape, max_record_bytes: int) -> SharedTier:
    from states.shared.checkpoints import CheckpointStore  # of an extra, as an open store has shown to be there

    checkpoints = CheckpointStore(store.client, store.bodies, store.config.ttl)
    return SharedTier(store.config, store.client, checkpoints, store.capacity, model, shape, max_record_bytes)
