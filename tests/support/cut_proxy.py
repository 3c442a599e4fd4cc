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
        self._writers: set[asyncio.StreamWriter] = set()
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
            self._listener.close()
            self._listener = None
        for writer in self._writers:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, there_writer}
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        self._writers -= {writer, there_writer}


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
