"""A real Valkey or Redis server in a folder of the test's own, and a proxy that delays traffic."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from valkey import Valkey

from tests.support.cut_proxy import close_listener
from tools.setup.programs import STORE

_START_SECONDS = 20


def server_program() -> str:
    """Return the path of the server's program. If there is none, skip the test, or fail it in CI."""
    try:
        return STORE.find()
    except FileNotFoundError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


class StoreServer:
    """A server on a port of this machine. It keeps nothing over a restart."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._program = server_program()
        self._folder = folder
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "no", "--logfile", str(self._folder / "log"), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _wait_until_ready(self.port, self._process)

    def kill(self) -> None:
        """End the server at once. Its data is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def client(self, password: str | None = None) -> Iterator[Valkey]:
        """Yield a client for the test itself."""
        with Valkey(port=self.port, password=password) as client:
            yield client

    def keys(self, pattern: str = "*") -> list[bytes]:
        """Return the keys that the server holds."""
        with self.client() as client:
            return sorted(client.scan_iter(pattern))


class SlowProxy:
    """A proxy of a port. It passes bytes on `delay` seconds later, in both directions."""

    def __init__(self, target: int, delay: float) -> None:
        self._target = target
        self.delay = delay  # may be changed at any time
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow-proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_SECONDS)

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _end(self) -> None:
        await close_listener(self._server)
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)  # each task has begun then, and closes its connection when it is cancelled
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.CancelledError, OSError):
            behind, ahead = await asyncio.open_connection("127.0.0.1", self._target)
            with closing(ahead):
                await asyncio.gather(self._pass(reader, ahead), self._pass(behind, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            self._loop.call_later(self.delay, _write, writer, data)
        self._loop.call_later(self.delay, writer.close)


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the store ended with {process.returncode}")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"PING\r\n")
            if probe.recv(100).startswith((b"+PONG", b"-NOAUTH")):  # else it still reads its files
                return
        time.sleep(0.01)
    raise RuntimeError("the store does not answer")
