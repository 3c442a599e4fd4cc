"""A proxy of a server. It can cut all connections, as if the server died, and mend, as if it started again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CutProxy:
    """A proxy of a server on this machine. Its port stays the same over cuts."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def mend(self, port: int | None = None) -> None:
        """Accept connections. If `port` is given, pass them on to the server there from now on."""
        self._to = self._to if port is None else port
        self._listener = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)

    async def cut(self) -> None:
        """Break all connections off and refuse new ones."""
        if self._listener is not None:
            await close_listener(self._listener)
            self._listener = None
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._copy_both(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        if self._listener is None:
            task.cancel()

    async def _copy_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
            writers.append(there_writer)
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        finally:
            for each in writers:
                each.transport.abort()


async def close_listener(listener: asyncio.Server) -> None:
    """Stop accepting connections, and return when those that were accepted have begun.

    Python never closes a connection that is accepted but has not begun when its server is closed (cpython#109564).
    """
    for each in listener.sockets:
        asyncio.get_running_loop().remove_reader(each)
    await asyncio.sleep(0)
    listener.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    with suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def cut_proxy(port: int) -> AsyncIterator[CutProxy]:
    """Yield a proxy that accepts connections; they end with the block."""
    proxy = CutProxy(port)
    await proxy.mend()
    try:
        yield proxy
    finally:
        await proxy.cut()
