"""Settings and counters of the shared store (Valkey or Redis), and its opening. Its client library is an extra."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, urlsplit

from rnn_engine.bounds import Kind, Settings, described, setting
from rnn_engine.errors import (
    InvalidRequestError,
    RnnEngineError,
    StateError,
    UnavailableError,
    needs_extra,
    without_credentials,
)

if TYPE_CHECKING:
    from rnn_engine_states.frozen import Precision
    from rnn_engine_states.shared.client import StoreClient

MOST_TTL = 366 * 86400  # seconds

_FORM = (
    "valkey://[USER:PASSWORD@]HOST[:PORT][/DATABASE], valkeys:// for TLS, redis:// or rediss:// likewise, or "
    "unix://[USER:PASSWORD@]/PATH[?db=DATABASE]"
)
_TLS = ("valkeys", "rediss")
_SCHEMES = ("valkey", "redis", "unix", *_TLS)
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """The parsed address of a shared store, and its form without user and password for logs and errors."""

    text: str = field(repr=False)
    shown: str  # without user and password
    tls: bool

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Parse a store's address. Raises InvalidRequestError, whose message does not have the password."""
        try:
            parts = urlsplit(text)
            _check(parts)
        except ValueError:
            bare = without_credentials(text)
            reason = _fault(bare) or "in a password, write '#' as %23, '/' as %2F, '?' as %3F and '@' as %40"
            shown = bare.partition("?")[0]
            raise InvalidRequestError("store", shown, _FORM, f"store {shown!r}: {reason}; expected {_FORM}") from None
        return cls(text, f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", parts.scheme in _TLS)


def _fault(text: str) -> str | None:
    """Return what is wrong with an address that has no password; None if nothing is."""
    try:
        _check(urlsplit(text))
    except ValueError as error:
        return str(error)
    return None


def _check(parts: SplitResult) -> None:
    """Raise ValueError if a store's address can't be used. The message may have any part of the address."""
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"the scheme {parts.scheme!r} is unknown")
    if parts.fragment:
        raise ValueError("'#' is not allowed")
    options = _parse_options(parts.query)
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise ValueError("the socket's path is missing")
        _check_options(options, ("db",))
        _check_database(options.get("db", "0"))
        return
    if not parts.hostname:
        raise ValueError("the host is missing")
    if parts.port == 0:
        raise ValueError("the port must be from 1 to 65535")
    _check_options(options, _TLS_FILES if parts.scheme in _TLS else ())
    _check_database(parts.path.removeprefix("/") or "0")


def _check_database(text: str) -> None:
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise ValueError(f"{text[:20]!r} is not the number of a database")


def _parse_options(query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:  # whose message has the text, which may be a secret
        raise ValueError("expected NAME=VALUE after '?'") from None


def _check_options(options: dict[str, str], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise ValueError(f"unknown option {name[:20]!r} after '?'; there are: {', '.join(known) or 'none'}")


@dataclass(frozen=True, slots=True)
class StoreConfig(Settings):
    """A shared store's address, time limits and bounds; its size is bounded by its own `maxmemory`."""

    url: StoreUrl = field(
        metadata=described(
            "Share states with other servers of the same model in the Valkey or Redis at valkey://USER:PASSWORD@HOST:"
            "PORT, or valkeys:// for TLS. Other users can't see it in the environment. Needs the extra `store`.",
            Kind(metavar="URL", parse=StoreUrl.parse),
            "--store",
            env="RNN_ENGINE_STORE",
        )
    )
    precision: Precision = "f32"
    timeout: float = setting(1.0, Kind(float, "SECONDS", low=0.001, high=60), "--store-timeout").help(
        "The longest that a request waits for the store's answer, and again for a state from it."
    )
    ttl: int = setting(86400, Kind(int, "SECONDS", low=1, high=MOST_TTL), "--store-ttl").help(
        "How long an unused state of prompts or answers stays in the store."
    )
    write_after: float = 1.0  # seconds after which a state is written there
    min_tokens: int = 64  # a shorter prefix is run more quickly than its state is fetched
    background_bytes: int = 64 << 20  # bound on what waits to be written
    index_bytes: int = 32 << 20  # host memory for tokens and records of what is known to be there


class StoreOutcome(Enum):
    """The outcome of an operation on the shared store."""

    DONE = "done"
    FAILED = "failed"  # the store was not reached, or refused the operation
    TIMED_OUT = "timed_out"
    NO_ROOM = "no_room"  # the store's memory is full
    SKIPPED = "skipped"  # not started, since the last ones have failed


@dataclass(slots=True)
class StoreCounters:
    """A store client's counters since its start, written by its thread; others read single numbers."""

    outcomes: dict[StoreOutcome, int] = field(default_factory=lambda: dict.fromkeys(StoreOutcome, 0))
    read_bytes: int = 0  # of states
    written_bytes: int = 0
    seconds: float = 0.0  # that operations took, including those that failed
    circuit_open: bool = False  # operations of some kind are not tried for a while
    circuit_openings: int = 0
    unreadable: int = 0  # values that could not be parsed, and were treated as missing


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
