"""Opening a shared store, whose client is an optional extra."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnn_engine.errors import RnnEngineError, StateError, UnavailableError
from states.shared.config import StoreConfig

if TYPE_CHECKING:
    from states.shared.client import StoreClient

_EXTRA = "a shared store needs the packages of the extra `store`: pip install 'rnn-engine[store]'"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store that is used."""

    config: StoreConfig
    client: StoreClient
    capacity: int | None  # bytes that it may take in all; None where it has no bound or told none

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self.client.close()


def open_store(config: StoreConfig, clock: Callable[[], float] = time.monotonic) -> OpenStore:
    """Open a store, which need not be reached now. `clock` gives seconds that never go back.

    Raises StateError where the store refuses whoever asks, or where the packages of the extra are missing.
    """
    try:
        from states.shared.client import StoreClient
    except ImportError as error:
        raise StateError(_EXTRA) from error
    client, capacity = StoreClient(config.url, config.timeout, clock), None
    try:
        capacity = client.submit(client.check()).result()
    except UnavailableError as error:
        _log.warning("%s: %s; going on without it until it answers", config.url.shown, error)
    except RnnEngineError:
        client.close()
        raise
    return OpenStore(config, client, capacity)
