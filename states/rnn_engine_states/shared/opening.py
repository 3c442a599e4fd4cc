"""Open a shared store and its object store. Their client libraries are optional extras."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rnn_engine.errors import RnnEngineError, StateError, UnavailableError, needs_extra
from rnn_engine_states.shared.config import StoreConfig

if TYPE_CHECKING:
    from rnn_engine_states.shared.checkpoints import Bodies
    from rnn_engine_states.shared.client import StoreClient

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenStore:
    """An open shared store: its settings, its client, and the place of its checkpoints' state files."""

    config: StoreConfig
    client: StoreClient
    bodies: Bodies
    capacity: int | None  # bytes that states may take in all; None if there is no bound or it is not known

    def close(self) -> None:
        """Close all connections to the store. Idempotent."""
        self.client.close()


def open_store(config: StoreConfig, clock: Callable[[], float] = time.monotonic) -> OpenStore:
    """Open the shared store of `config`, and check that it can be used. If it does not answer now, only log a warning.

    `clock` returns seconds and never goes back. Raises StateError if the store denies access or can't be used, or if
    the packages of an extra are missing.
    """
    with needs_extra("store", "a shared store", StateError):
        from rnn_engine_states.shared.checkpoints import Bodies
        from rnn_engine_states.shared.client import StoreClient
    client = StoreClient(config.url, config.timeout, clock)
    try:
        capacity = _check(client, config.url.shown, client.check())
        if config.objects is None:
            return OpenStore(config, client, Bodies(client, config.ttl), capacity)
        with needs_extra("objects", "an object store", StateError):
            from rnn_engine_states.shared.object_bodies import ObjectBodies
        bodies = ObjectBodies(client, config.objects.url, config.ttl, config.objects.capacity)
        _check(client, config.objects.url, bodies.check())
        return OpenStore(config, client, bodies, config.objects.capacity)
    except RnnEngineError:
        client.close()
        raise


def _check(client: StoreClient, place: str, check: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `check`; if the store at `place` does not answer, log a warning and return None."""
    try:
        return client.submit(check).result()
    except UnavailableError as error:
        _log.warning("%s: %s; going on without it until it answers", place, error)
        return None
