"""The settings of a shared store."""

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
    """An object store that has the states of prompts and answers, of which the store keeps the index."""

    url: str
    capacity: int = 64 << 30  # bytes, of all servers and models

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for an address that is none. Secrets are not part of it."""
        parts = urlsplit(self.url)
        if parts.scheme not in _OBJECT_SCHEMES or not (parts.path if parts.scheme == "file" else parts.netloc):
            allowed = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or file:///FOLDER"
            raise InvalidRequestError("objects", self.url, allowed)


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
    objects: ObjectsConfig | None = None  # None: the store keeps the states of prompts and answers, too
    index_bytes: int = 32 << 20  # host memory for what is known to be there: tokens and records

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("timeout", self.timeout)
        check_finite("write_after", self.write_after)
