"""The server as a process: stop signals, listening sockets, what systemd passes to it, and garbage collections."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rnn_engine_server.core.settings import ServerSettings


_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # a terminal that is closed sends one of the last two
_log = logging.getLogger(__name__)


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first stop signal sets; a second one ends the process with exit code 128 + its number.

    A signal that was ignored before stays ignored, as SIGHUP is under `nohup`. For the main thread.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    received: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        loop.call_soon_threadsafe(stop.set)

    with _handling(on_signal):
        yield stop


def end_at_signals() -> AbstractContextManager[None]:
    """Return a context manager in whose `with` block a stop signal ends the process at once with exit code 0.

    It is for the time before there is anything to stop. A signal that was ignored before stays ignored. For the main
    thread.
    """
    return _handling(lambda *_: os._exit(0))


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` for each stop signal during a `with` block. Signals that were ignored stay ignored."""
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in numbers}
    for number, earlier in previous.items():
        if earlier is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


@asynccontextmanager
async def responsive_interpreter(is_idle: Callable[[], bool]) -> AsyncIterator[None]:
    """Keep threads from waiting long for Python's interpreter during a `with` block.

    Full garbage collections are delayed until `is_idle()`, as far as memory allows: one stops all threads while it
    visits every object, such as the messages of all long chats that are being read. Python begins one after ten younger
    collections, so large requests cause many.

    Threads take turns sooner. The engine's worker lets others run in each operation on arrays, of which a step has
    hundreds, and beside a busy thread it waits for a turn after each.
    """
    younger, old, full = gc.get_threshold()
    switch_seconds = sys.getswitchinterval()
    gc.set_threshold(younger, old, _FULL_THRESHOLD)
    sys.setswitchinterval(_SWITCH_SECONDS)
    collecting = asyncio.create_task(_collect_when(is_idle, full))
    try:
        yield
    finally:
        gc.set_threshold(younger, old, full)
        sys.setswitchinterval(switch_seconds)
        collecting.cancel()
        await asyncio.wait((collecting,))


_FULL_THRESHOLD = 1000  # younger collections; each comes after some 7,000 new objects that are still in use
_COLLECT_SECONDS = 1.0
_SWITCH_SECONDS = 0.0002  # Python's own 0.005 made steps ten times as long beside large requests


async def _collect_when(is_idle: Callable[[], bool], threshold: int) -> None:
    while True:
        await asyncio.sleep(_COLLECT_SECONDS)
        if is_idle() and gc.get_count()[2] > threshold:
            gc.collect()


def end_process() -> NoReturn:
    """Flush the log and standard output, and end the process with exit code 0 even if its threads are busy."""
    logging.shutdown()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


# The sockets on which a server takes connections: a TCP port, a Unix socket, or those that systemd passes.


@contextmanager
def open_listeners(settings: ServerSettings) -> Iterator[list[socket.socket]]:
    """Yield the bound sockets on which the server takes connections, at least one.

    At the end they are closed, and the file of a Unix socket is removed. They are the sockets that systemd passes, if
    any, else the Unix socket of the settings, else their host and port; `localhost` stands for both loopback addresses.
    Raises OSError if an address can't be bound.
    """
    with ExitStack() as stack:
        listeners = take_sockets()
        if not listeners and settings.unix_socket is not None:
            listeners = [stack.enter_context(_unix_socket(settings.unix_socket, settings.unix_socket_mode))]
        listeners = listeners or _bind_all(settings.host, settings.port)
        for listener in listeners:
            stack.enter_context(listener)
        yield listeners


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the address of a socket as clients write it: SCHEME://HOST:PORT, or unix:PATH."""
    address = listener.getsockname()
    if isinstance(address, str | bytes):
        return f"unix:{os.fsdecode(address)}"
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


_LOOPBACKS = ("127.0.0.1", "::1")
_MOST_TRIES = 32


def _bind_all(host: str, port: int) -> list[socket.socket]:
    """Return bound sockets for `host`: for localhost one at each loopback address that this computer has.

    Clients that call localhost may try either address first, and another program may have the other one. The port is
    the same; for port 0, it is one that is free at both. Raises OSError if an address can't be bound.
    """
    if host.rstrip(".").lower() != "localhost":
        return [_bind(host, port)]
    addresses = [address for address in _LOOPBACKS if _is_present(address)] or [host]
    for tries_left in reversed(range(1 if port else _MOST_TRIES)):
        first = _bind(addresses[0], port)
        try:
            return [first, *(_bind(address, first.getsockname()[1]) for address in addresses[1:])]
        except OSError:
            first.close()
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _is_present(address: str) -> bool:
    with suppress(OSError), _bind(address, 0):
        return True
    return False


def _bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound to `host` and `port` and does not listen yet."""
    place = f"{host} port {port}"
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(place, error) from error
    try:
        if sys.platform != "win32":  # Windows would share the port with other programs
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
        """Yield a socket that listens at `path`, a file with the permissions `mode`.

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
        """Remove the socket file of an ended server. Raises OSError for a socket in use or another kind of file."""
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
                pass  # its queue of waiting connections is full
            raise FileExistsError(0, "another server uses it")


def _cannot_listen(place: str, error: OSError, advice: str = "") -> OSError:
    return OSError(f"can't listen on {place}: {error.strerror}{advice}")


# What systemd passes to a service: sockets to listen on, and a socket for messages such as READY=1.

_FIRST = 3  # the descriptor of the first socket


def take_sockets(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the listening sockets that systemd passed to this process, or none. A second call returns none.

    Raises OSError for a descriptor that is no stream socket, and for a LISTEN_FDS that is no number.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    given = environment.get("LISTEN_FDS", "0")
    if not given.isdecimal():
        raise OSError(f"LISTEN_FDS is {given!r}; expected a number of sockets")
    count = int(given)
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        environment.pop(name, None)
    listeners = [socket.socket(fileno=descriptor) for descriptor in range(_FIRST, _FIRST + count)]
    for listener in listeners:
        listener.set_inheritable(False)
        if listener.type != socket.SOCK_STREAM:
            raise OSError(f"can't listen on socket {listener.fileno()} of LISTEN_FDS: expected a stream socket")
    return listeners


def notify(message: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Send `message`, such as READY=1, to the service manager, if there is one. A failure is logged."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address and hasattr(socket, "AF_UNIX"):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
                sender.sendall(message.encode())
        except OSError as error:
            _log.warning("the service manager at %s did not get %s: %s", address, message, error)
