"""Clients of a server: one that times the answer to a completion or chat request, and one that sends any bytes.

Imports no other module of the project.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector

SMALL_WINDOW = 4096
"""The receive buffer of a stalled reader's socket, in bytes: small, so that the server notices the stall early."""


@dataclass(slots=True)
class Answer:
    """The answer to a completion or chat request, with its times in seconds since the argument `begun` of `ask`."""

    asked: float
    status: int = 0
    promises_more: bool = False  # the refusal says when to come again
    moments: list[float] = field(default_factory=list)  # when each piece with text or tokens came
    text: str = ""
    token_ids: list[int] = field(default_factory=list)  # if the body asked for them
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None

    @property
    def first(self) -> float:
        """The seconds from the request to the first piece of the answer."""
        return self.moments[0] - self.asked

    @property
    def gaps(self) -> list[float]:
        """The seconds between successive pieces of the answer."""
        return [later - earlier for earlier, later in pairwise(self.moments)]

    @property
    def tokens(self) -> int:
        return int(self.usage["completion_tokens"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def cached_tokens(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])

    def add(self, event: Mapping[str, Any], now: float) -> None:
        """Add an event of the stream, or the whole body of a response that is not streamed. It arrived at `now`."""
        self.error = self.error or event.get("error")
        self.usage = event.get("usage") or self.usage
        size = len(self.text), len(self.token_ids)
        for choice in event.get("choices", ()):
            self.text += choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
            self.token_ids += choice.get("token_ids") or ()
        if (len(self.text), len(self.token_ids)) != size:
            self.moments.append(now)


async def ask(session: ClientSession, url: str, body: Mapping[str, object], begun: float = 0.0) -> Answer:
    """Send `body` to the route `url`, and return the answer. Its `error` is set if it was rejected or ended early.

    `begun` is the moment of `time.perf_counter` from which the answer's moments count.
    """
    answer = Answer(time.perf_counter() - begun)
    async with session.post(url, json=body) as response:
        answer.status, answer.promises_more = response.status, "Retry-After" in response.headers
        if response.content_type == "text/event-stream":
            async for event in events(response):
                answer.add(event, time.perf_counter() - begun)
        else:
            answer.add(await response.json(), time.perf_counter() - begun)
    if answer.status != 200 and answer.error is None:
        answer.error = {"message": f"status {answer.status}"}
    return answer


async def events(response: ClientResponse) -> AsyncIterator[Any]:
    """Yield the JSON events of a stream as they arrive. If it ends without [DONE], the last event is an error."""
    async for line in response.content:
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))
    yield {"error": {"message": "the stream ended without [DONE]"}}


def patient_session(api_key: str | None = None) -> ClientSession:
    """Return a client session without a timeout and without a limit of connections."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return ClientSession(headers=headers, connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))


async def metric(session: ClientSession, url: str, name: str) -> float:
    """Return a metric of the server, summed over its labels. Raises ValueError if there is none of this name."""
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    if not values:
        raise ValueError(f"the server has no metric {name}")
    return sum(values)


async def device_of(url: str, api_key: str | None = None) -> str:
    """Return the name of the device on which the server runs its model."""
    async with patient_session(api_key) as session, session.get(f"{url}/v1/models") as response:
        return str((await response.json())["data"][0]["meta"]["device"])


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
