"""What an operator may set of who comes in."""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.errors import InvalidRequestError
from server.doors.keys import ApiKey, check_keys
from server.doors.origins import ANY
from server.doors.rates import UNBOUNDED, Rate
from server.doors.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Who may come in. Without keys that is this machine and the server's own pages."""

    keys: tuple[ApiKey, ...] = ()
    open: bool = False  # without keys: other machines, too
    allowed_hosts: tuple[str, ...] = ()  # names by which clients may call the server
    cors_origins: tuple[str, ...] = ()  # of other web pages, as `https://chat.example`; `*` for all, with keys only

    tls: TlsFiles | None = None  # None = no TLS
    share_cache: bool = False  # let all keys go on from what any of them has asked before
    rate: Rate = UNBOUNDED  # of each key that has none of its own, or without keys of each address

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for settings that do not go together."""
        check_keys(self.keys)
        if ANY in self.cors_origins and not self.keys:
            raise InvalidRequestError(
                "cors origin", ANY, "origins one by one, since without an API key any page on the web could call"
            )
