"""Open a shared store. Its client library is an optional extra."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnn_engine.errors import RnnEngineError, StateError, UnavailableError, needs_extra
from rnn_engine_states.shared.config import StoreConfig

if TYPE_CHECKING:
    from rnn_engine_states.shared.client import StoreClient

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenStore:
    """An open shared store: its settings, its client and its bound."""

    config: StoreConfig
    client: StoreClient
    capacity: int | None  # bytes that states may take in all; None if there is no bound or it is not known

    def close(self) -> None:
        """Close all connections to the store. Idempotent."""
        self.client.close()


def open_store(config: StoreConfig, clock: Callable[[], float] = time.monotonic) -> OpenStore:
    """Open the shared store of `config`, and check that it can be used. If it does not answer now, only log a warning.

    `clock` returns seconds and never goes back. Raises StateError if the store denies access or can't be used, or if
    the packages of the extra are missing.
    """
    with needs_extra("store", "a shared store", StateError):
        from rnn_engine_states.shared.client import StoreClient
    client = StoreClient(config.url, config.timeout, clock)
    try:
        capacity = client.submit(client.check()).result()
    except UnavailableError as error:
        _log.warning("%s: %s; going on without it until it answers", config.url.shown, error)
        capacity = None
    except RnnEngineError:
        client.close()
        raise
    return OpenStore(config, client, capacity)
