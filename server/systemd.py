"""What systemd hands to a service: sockets that it listens on, and a socket on which to tell when it is ready."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

_FIRST = 3  # the descriptor of the first socket
_log = logging.getLogger(__name__)


def take_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the sockets that were passed to this process, none if there are none; they are passed once.

    Raises OSError for a descriptor that is no socket of connections, and for a number of them that is none.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    given = environment.get("LISTEN_FDS", "0")
    if not given.isdecimal():
        raise OSError(f"LISTEN_FDS: {given!r} is not allowed; expected a number of sockets")
    count = int(given)
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environment.pop(name, None)
    listeners = [socket.socket(fileno=descriptor) for descriptor in range(_FIRST, _FIRST + count)]
    for listener in listeners:
        listener.set_inheritable(False)
        if listener.type != socket.SOCK_STREAM:
            raise OSError(f"can't listen on socket {listener.fileno()} of LISTEN_FDS: expected one of connections")
    return listeners


def notify(message: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Send `message`, as READY=1, to the service manager, if there is one. One that is gone is logged."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address and hasattr(socket, "AF_UNIX"):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
                sender.sendall(message.encode())
        except OSError as error:
            _log.warning("the service manager at %s can't be told %s: %s", address, message, error)
