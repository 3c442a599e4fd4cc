"""What the cases share: a server with room for 200 clients, its metrics, and one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from tools.live_server.process import ServerProcess

CLIENTS = 200
LONG = 10_000  # tokens
PATH = "/v1/completions"
_OPTIONS = ("--slots", str(CLIENTS), "--max-queued", str(CLIENTS))
_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.005

Result = TypeVar("Result")


def request_body(number: int, max_tokens: int, **fields: object) -> Mapping[str, object]:
    """Return a request that ends at `max_tokens` and not before: token 0, which would end the text, can't come."""
    return {"prompt": f"Client {number}:", "max_tokens": max_tokens, "logit_bias": {"0": -1000}, **fields}


def with_server(
    options: tuple[str, ...],
    case: Callable[[str, ClientSession], Awaitable[Result]],
    headers: Mapping[str, str] | None = None,
) -> Result:
    """Run a case against a server that is started for it; return what it returns. `headers` go with all requests."""

    async def run(url: str) -> Result:
        async with ClientSession(
            connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None), headers=headers
        ) as session:
            return await case(url, session)

    with TemporaryDirectory() as folder, ServerProcess(Path(folder) / "log", (*_OPTIONS, *options)) as server:
        result = asyncio.run(run(server.url))
        if server.stop() != 0:
            raise RuntimeError("the server did not end with 0 at SIGTERM")
        return result


async def wait_for(session: ClientSession, url: str, reached: Callable[[Mapping[str, int]], bool]) -> float:
    """Ask /health until it says what is waited for; return after how many seconds. Raises TimeoutError."""
    begun = time.monotonic()
    async with asyncio.timeout(_WAIT_SECONDS):
        while True:
            async with session.get(f"{url}/health") as response:
                if reached(await response.json()):
                    return time.monotonic() - begun
            await asyncio.sleep(_POLL_SECONDS)
