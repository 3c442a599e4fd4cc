"""HTTP requests as bytes over a plain socket, for clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

SMALL_WINDOW = 4096
"""The receive buffer of a stalled reader's socket, in bytes: small, so that the server notices the stall early."""


def encode_request(
    method: str, path: str, body: Mapping[str, object] | bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of a complete HTTP/1.1 request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(data))}
    lines = [
        f"{method} {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in {**fields, **(headers or {})}.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@asynccontextmanager
async def connection(
    url: str, *, receive_bytes: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the server at `url`, and yield a reader and a writer.

    The connection is aborted at the end of the block. `receive_bytes` is the size of the socket's buffer; little more
    than that is read ahead of the caller.
    """
    address = urlsplit(url)
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if receive_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=made, limit=receive_bytes or 2**16)
    except BaseException:
        made.close()
        raise
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
