"""Opening a shared store. Its client is an optional extra."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rnn_engine.errors import RnnEngineError, StateError, UnavailableError, needs_extra
from states.shared.config import StoreConfig

if TYPE_CHECKING:
    from states.shared.bodies import Bodies, Objects
    from states.shared.client import StoreClient

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A shared store that is in use."""

    config: StoreConfig
    client: StoreClient
    bodies: Bodies
    capacity: int | None  # bytes that states may take in all; None if there is no bound or it is not known

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.client.close()


def open_store(config: StoreConfig, clock: Callable[[], float] = time.monotonic) -> OpenStore:
    """Open a store, even if it does not answer now. `clock` returns seconds that never go back.

    Raises StateError if the store refuses access or can't be used, or if the packages of an extra are missing.
    """
    with needs_extra("store", "a shared store", StateError):
        from states.shared.bodies import ObjectBodies, StoredBodies
        from states.shared.client import StoreClient
    client = StoreClient(config.url, config.timeout, clock)
    try:
        capacity = _check(client, config.url.shown, client.check())
        if config.objects is None:
            return OpenStore(config, client, StoredBodies(client, config.ttl), capacity)
        objects = _open_objects(config.objects.url, client)
        _check(client, config.objects.url, objects.check())
        bodies = ObjectBodies(client, objects, config.ttl, config.objects.capacity)
        return OpenStore(config, client, bodies, config.objects.capacity)
    except RnnEngineError:
        client.close()
        raise


def _open_objects(url: str, client: StoreClient) -> Objects:
    with needs_extra("objects", "an object store", StateError):
        from states.shared.bodies import Objects
    return Objects(url, client)


def _check(client: StoreClient, place: str, check: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of a check. If the place does not answer now, log a warning and return None."""
    try:
        return client.submit(check).result()
    except UnavailableError as error:
        _log.warning("%s: %s; going on without it until it answers", place, error)
        return None
