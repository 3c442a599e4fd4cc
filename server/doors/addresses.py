"""The machines that connect where no API key is asked for: which may, and which count as one client."""

from __future__ import annotations

import ipaddress
import logging
import socket

from rnn_engine.errors import InvalidRequestError
from server.doors.settings import DoorSettings

_log = logging.getLogger(__name__)


def is_local(address: object) -> bool:
    """Return whether a socket's address, as Python's `socket` gives it, can be reached from this machine alone.

    That is a loopback address or the path of a Unix socket. None, the address of a connection that has ended, is not.
    """
    if isinstance(address, str | bytes):
        return True
    if not isinstance(address, tuple) or not address:
        return False
    try:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def network_of(address: str) -> str:
    """Return the address of a client, or of its network where that is how many one client has: a /64 of IPv6."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 4 or ip.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False))


def check_listener(listener: socket.socket, doors: DoorSettings) -> None:
    """Raise InvalidRequestError for a socket that other machines reach where no API key is asked for.

    Where the operator admits everybody all the same, log a warning.

    llama-server and vLLM listen on `0.0.0.0` without a key and say nothing, and people copy that line from one machine
    to the next. Here the line ends with an error that names the two ways on, before the model is loaded; the server
    that others can use by accident is the worse surprise.
    """
    address = listener.getsockname()
    if doors.keys or is_local(address):
        return
    if not doors.open:
        raise InvalidRequestError(
            "host",
            address[0],
            "a loopback address such as 127.0.0.1, since no API key is asked for and other machines reach this one; "
            "set a key with --api-key or --api-key-file, or admit every machine with --open",
        )
    _log.warning("no API key is asked for: whoever reaches %s may use the server and change what it keeps", address[0])
