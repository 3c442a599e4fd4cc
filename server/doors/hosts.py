"""The Host header, checked against DNS rebinding.

A page of evil.example whose name is made to resolve to 127.0.0.1 is of the server's own origin for a browser, which
tells it from a page of the server by nothing but the name in Host. So names have to be listed. An IP address passes,
whichever it is: the page that asked for it was reached by an address, without DNS. What has no Host is no browser.

With an API key such a page can do nothing, since it has no key. Host is then checked only where names are listed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

_HOST_AND_PORT = re.compile(r"(\[[^\[\]]*\]|[^:]*)(?::[0-9]*)?")


class AllowedHosts:
    """The names by which clients may call the server; `localhost` is always one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_plain(name) for name in ("localhost", *names)}

    def __contains__(self, header: object) -> bool:
        """Whether a Host header, with a port or without, names this server."""
        match = _HOST_AND_PORT.fullmatch(header) if isinstance(header, str) else None
        if match is None:
            return False
        name = _plain(match[1])
        return name in self._names or _is_address(name)


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
