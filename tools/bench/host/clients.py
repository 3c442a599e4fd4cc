"""A process of HTTP clients that stream completions to measure a server, with as little work per token as possible.

Reads the arguments of `measure` as JSON from stdin, and prints its result as JSON. Imports nothing of the project.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

MARK = b"~"
"""Each of the server's tokens has one of these, so clients can count tokens in the raw bytes of an answer."""

END = b"\r\n0\r\n\r\n"  # of a body in chunks


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of tokens that all clients together received, and their rate per second."""

    tokens: int  # the warm-up's too
    per_second: float  # after the warm-up


class Client(asyncio.Protocol):
    """An HTTP client on one connection that sends the same request again whenever a response has ended."""

    def __init__(self, request: bytes) -> None:
        self.tokens = 0
        self.error: str | None = None
        self._request = request
        self._tail = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self.error = f"the server refuses a request: {data[:500]!r}"
        self.tokens += data.count(MARK)
        self._tail = (self._tail + data)[-len(END) :]
        if self._tail == END:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self.error = self.error or str(error or "a connection was closed")

    def _send(self) -> None:
        assert self._transport is not None
        self._tail = b""
        self._transport.write(self._request)


async def measure(port: int, num_clients: int, warm_up: float, seconds: float, body: object) -> Counted:
    """Run clients that repeat a request, for the warm-up and then for `seconds`.

    Return the tokens that they received.
    """
    data = json.dumps(body).encode()
    fields = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(data)}")
    request = "\r\n".join(("POST /v1/completions HTTP/1.1", *fields, "", "")).encode() + data
    loop = asyncio.get_running_loop()
    clients = [Client(request) for _ in range(num_clients)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.sleep(warm_up)
    before, begun = sum(client.tokens for client in clients), time.perf_counter()
    await asyncio.sleep(seconds)
    tokens, taken = sum(client.tokens for client in clients), time.perf_counter() - begun
    errors = [client.error for client in clients if client.error]
    if errors:
        raise SystemExit(errors[0])
    return Counted(tokens, (tokens - before) / taken)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(measure(**json.load(sys.stdin))))))
