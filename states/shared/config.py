"""Settings of the shared store (a Valkey or Redis server) and of the object store for its large values."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rnn_engine.errors import InvalidRequestError, check_finite
from states.frozen import Precision
from states.shared.client import StoreUrl

MOST_TTL = 366 * 86400  # seconds

_OBJECT_SCHEMES = ("s3", "gs", "az", "file")


@dataclass(frozen=True, slots=True)
class ObjectsConfig:
    """The settings of an object store for checkpoints' state files. The shared store then has only their index."""

    url: str
    capacity: int = 64 << 30  # bytes, of all servers and models

    def __post_init__(self) -> None:
        """Raise InvalidRequestError unless `url` is an object store's address. Such an address has no credentials."""
        parts = urlsplit(self.url)
        if parts.scheme not in _OBJECT_SCHEMES or not (parts.path if parts.scheme == "file" else parts.netloc):
            allowed = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or file:///FOLDER"
            raise InvalidRequestError("objects", self.url, allowed)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The settings of a shared store: its address, time limits and bounds.

    Its size is bounded by its own `maxmemory`.
    """

    url: StoreUrl
    precision: Precision = "f32"
    timeout: float = 1.0  # seconds that a request waits for an answer, and again for a state
    ttl: int = 86400  # seconds without use after which a state expires
    write_after: float = 1.0  # seconds after which a state is written there
    min_tokens: int = 64  # a shorter prefix is run more quickly than its state is fetched
    background_bytes: int = 64 << 20  # bound on what waits to be written
    objects: ObjectsConfig | None = None  # None: the store keeps the states of prompts and answers, too
    index_bytes: int = 32 << 20  # host memory for tokens and records of what is known to be there

    def __post_init__(self) -> None:
        """Raise InvalidRequestError if `timeout` or `write_after` is negative, infinite or NaN."""
        check_finite("timeout", self.timeout)
        check_finite("write_after", self.write_after)
