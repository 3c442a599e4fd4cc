"""The settings of a shared store."""

from __future__ import annotations

from dataclasses import dataclass

from states.payload import Precision
from states.shared.url import StoreUrl

MOST_TTL = 366 * 86400  # seconds


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where the store is, and what is kept there. The store itself bounds its bytes, by its `maxmemory`."""

    url: StoreUrl
    precision: Precision = "f32"
    timeout: float = 1.0  # seconds that a request waits for an answer, and again for a state
    ttl: int = 86400  # seconds that a state stays there without use
    write_after: float = 1.0  # seconds after which a state is written there
    min_tokens: int = 64  # fewer are run quicker than a state is fetched
    background_bytes: int = 64 << 20  # what may wait to be written
    index_bytes: int = 32 << 20  # host memory for what is known to be there: tokens and records
