"""Making a cache with the tiers that a configuration asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rnn_engine.errors import RnnEngineError, StateError, UnavailableError
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
from states.shared.config import StoreConfig

_EXTRA = "a shared store needs the packages of the extra `store`: pip install 'rnn-engine[store]'"
_log = logging.getLogger(__name__)


def make_cache(
    shape: ModelShape,
    model: str,
    live: LiveStates,
    config: CacheConfig | None = None,
    pool: DevicePool | None = None,
    writer: Writer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> StateCache:
    """A cache with the tiers that are configured: the device's `pool` where there is one, host memory, disk,
    the shared store.

    `model` is the fingerprint of whatever must be equal for a state to be continued: weights and their format.
    `writer` writes the files; None is one as configured. `clock` gives seconds that never go back.
    """
    config = config or CacheConfig()
    tiers: list[Tier] = []
    if pool is not None:
        tiers.append(DeviceTier(pool, config.index_bytes(pool.num_slabs * pool.slab_bytes) // 2))
    tiers.append(HostTier(shape, config.host_capacity, config.host_precision))
    if (disk := config.disk) is not None:
        if writer is None:
            writer = BackgroundWriter(disk.background_bytes) if disk.background_bytes > 0 else InlineWriter()
        reader = ThreadPoolExecutor(1, thread_name_prefix="state-reader")
        tiers.append(DiskTier(disk, model, shape, writer, reader))
    if config.store is not None:
        tiers.append(_open_shared_tier(config.store, model, shape, clock))
    return StateCache(live, tiers, config, clock)


def _open_shared_tier(config: StoreConfig, model: str, shape: ModelShape, clock: Callable[[], float]) -> SharedTier:
    """Open the tier in a store, which need not be reached now.

    Raises StateError where the store refuses whoever asks, or where the packages of the extra are missing.
    """
    try:
        from states.shared.checkpoints import CheckpointStore
        from states.shared.client import StoreClient
    except ImportError as error:
        raise StateError(_EXTRA) from error
    client, capacity = StoreClient(config.url, config.timeout, clock), None
    try:
        capacity = client.submit(client.check()).result()
    except UnavailableError as error:
        _log.warning("%s: %s; prompts are run without it until it answers", config.url.shown, error)
    except RnnEngineError:
        client.close()
        raise
    return SharedTier(config, client, CheckpointStore(client, config.ttl), capacity, model, shape)
