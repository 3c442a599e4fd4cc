"""A server over the fake engine, with the product's own connections, and clients that send bytes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rnn_engine.interface import EngineLike
from rnn_engine_server.connections import CONNECTIONS, ConnectionCounters
from rnn_engine_server.core.app import make_app, serving
from rnn_engine_server.core.settings import ConnectionSettings, ServerSettings
from tests.support.http import Body


@dataclass(frozen=True, slots=True)
class RawClient:
    """One connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def ask(self, path: str, body: Body | None = None) -> None:
        """Send a request: a POST if it has a body, else a GET."""
        data = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        self.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    async def answer(self) -> tuple[int, str, bytes]:
        """Return the status, head and body of the next answer, which must have a Content-Length."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        [length] = [line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length:")]
        return int(head.split()[1]), head, await self.reader.readexactly(int(length))

    async def error(self) -> tuple[int, Body]:
        """Return the status and the error object of the next answer."""
        status, head, body = await self.answer()
        assert "Content-Type: application/json" in head
        error: Body = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return status, error

    async def ended(self) -> bytes:
        """Return the bytes that come until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


@dataclass(frozen=True, slots=True)
class RawServer:
    """A running server."""

    port: int
    clients: list[RawClient]
    counters: ConnectionCounters

    async def connect(self, limit: int = 2**16) -> RawClient:
        """Open a connection. The client buffers at most about `limit` bytes that the test has not read."""
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port, limit=limit))
        self.clients.append(client)
        return client


@asynccontextmanager
async def raw_server(
    engine: EngineLike, connections: ConnectionSettings | None = None, settings: ServerSettings | None = None
) -> AsyncIterator[RawServer]:
    """Serve while the block runs; the clients' connections are closed at its end."""
    settings = settings or ServerSettings(connections=connections or ConnectionSettings())
    listener = socket.create_server(("127.0.0.1", 0))
    app = make_app(engine, settings)
    server = RawServer(listener.getsockname()[1], [], app[CONNECTIONS])
    async with serving(app, [listener], settings):
        try:
            yield server
        finally:
            for client in server.clients:
                client.writer.close()
