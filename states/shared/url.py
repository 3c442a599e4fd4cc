"""The address of a shared store."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from rnn_engine.errors import InvalidRequestError

_FORM = (
    "valkey://[USER:PASSWORD@]HOST[:PORT][/DATABASE], valkeys:// for TLS, redis:// or rediss:// likewise, or "
    "unix://[USER:PASSWORD@]/PATH[?db=DATABASE]"
)
_TLS = ("valkeys", "rediss")
_SCHEMES = ("valkey", "redis", "unix", *_TLS)
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """An address that was checked."""

    text: str
    shown: str  # without user and password
    tls: bool

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Check an address. Raises InvalidRequestError, whose message has no password."""
        shown = _without_password(text)
        try:
            parts = urlsplit(text)
            _check(parts)
        except ValueError as error:
            raise InvalidRequestError("store", shown, f"{_FORM}: {error}") from None
        return cls(text, shown.partition("?")[0], parts.scheme in _TLS)


def _check(parts: SplitResult) -> None:
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"{parts.scheme!r} is no scheme that is known")
    if parts.fragment:
        raise ValueError("a password's '#' is written %23, its '/' %2F")
    options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise ValueError("the socket's path is missing")
        _check_options(options, ("db",))
        _check_database(options.get("db", "0"))
        return
    if not parts.hostname:
        raise ValueError("the host is missing")
    if parts.port == 0:
        raise ValueError("a port is 1 to 65535")
    _check_options(options, _TLS_FILES if parts.scheme in _TLS else ())
    _check_database(parts.path.removeprefix("/") or "0")


def _check_database(text: str) -> None:
    if not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise ValueError(f"{text[:20]!r} is no number of a database")


def _check_options(options: dict[str, str], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise ValueError(f"{name[:20]!r} is unknown after '?'; there are: {', '.join(known) or 'none'}")


def _without_password(text: str) -> str:
    scheme, colon, rest = text.partition("://")
    return scheme + colon + rest.rpartition("@")[2]
