"""The sockets on which a server takes connections: a TCP port, a Unix socket, or those that systemd passes."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from server.settings import ServerSettings
from server.systemd import take_sockets


@contextmanager
def open_listeners(settings: ServerSettings) -> Iterator[list[socket.socket]]:
    """Give the bound sockets, at least one; close them at the end, and remove the file of a Unix socket.

    Sockets of systemd come first, then the Unix socket of the settings, then their port. Raises OSError where an
    address can't be had.
    """
    if listeners := take_sockets():
        try:
            yield listeners
        finally:
            for listener in listeners:
                listener.close()
    elif settings.unix_socket is not None:
        with _unix_socket(settings.unix_socket, settings.unix_socket_mode) as listener:
            yield [listener]
    else:
        with _bind(settings.host, settings.port) as listener:
            yield [listener]


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the address of a socket as clients write it: SCHEME://HOST:PORT, or unix:PATH."""
    address = listener.getsockname()
    if isinstance(address, str | bytes):
        return f"unix:{os.fsdecode(address)}"
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address but takes no connections yet."""
    place = f"{host} port {port}"
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(place, error) from error
    try:
        if sys.platform != "win32":  # where the option would share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        advice = "; --port takes another, as does `make serve PORT=8000`" if error.errno == errno.EADDRINUSE else ""
        raise _cannot_listen(place, error, advice) from error
    return listener


if sys.platform == "win32":

    def _unix_socket(path: Path, mode: int) -> AbstractContextManager[socket.socket]:  # noqa: ARG001
        raise OSError(f"can't listen on {path}: Windows has no Unix sockets")

else:

    @contextmanager
    def _unix_socket(path: Path, mode: int) -> Iterator[socket.socket]:
        """Give a socket that listens at `path`, for whom the file's `mode` admits.

        It listens at once, so that another server sees that it is in use; connections wait until they are accepted.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                _remove_stale(path)
                listener.bind(str(path))
                path.chmod(mode)
                listener.listen()
                made = path.lstat()
            except OSError as error:
                raise _cannot_listen(str(path), error) from error
            try:
                yield listener
            finally:
                with suppress(OSError):
                    if os.path.samestat(path.lstat(), made):
                        path.unlink()

    def _remove_stale(path: Path) -> None:
        """Remove what an ended server left. Raises OSError for a socket in use, and for another kind of file."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FileExistsError(0, "there is a file that is no socket")
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                return
            except BlockingIOError:
                pass  # so many wait that it does not take this one
            raise FileExistsError(0, "another server uses it")


def _cannot_listen(place: str, error: OSError, advice: str = "") -> OSError:
    return OSError(f"can't listen on {place}: {error.strerror}{advice}")
