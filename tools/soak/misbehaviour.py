"""Clients that leave, stall, or send invalid requests."""

from __future__ import annotations

import asyncio
import re

from tools.live_server.caller import Body, Caller, SurpriseError
from tools.live_server.raw import SMALL_WINDOW, connection, encode_request
from tools.soak.generation import CHAT, TEXT

_ENDLESS = {"max_tokens": 100_000, "logit_bias": {"0": -100}, "temperature": 1}  # token 0 would end the text
LONGEST_STALL = 20.0  # seconds for which a client reads nothing
_PATIENCE = 30.0  # seconds in which the server has to answer nonsense, or to close the connection

_BAD: tuple[tuple[str, str, Body | None, int], ...] = (
    ("POST", CHAT, {"messages": []}, 400),
    ("POST", CHAT, {"messages": [{"role": "nobody", "content": "x"}]}, 400),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "top_p": 1.5}, 400),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "unknown": 1}, 400),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "state": "nobody has this"}, 404),
    ("POST", TEXT, {"prompt": 7}, 400),
    ("POST", TEXT, {"prompt": "x", "n": 100_000}, 400),
    ("POST", TEXT, {"prompt": [10**9]}, 400),
    ("POST", TEXT, {"prompt": "x", "logit_bias": {"x": "much"}}, 400),
    ("POST", "/v1/choices", {"input": "x", "choices": []}, 400),
    ("POST", "/v1/embeddings", {"input": "x", "layer": 10**6}, 400),
    ("POST", "/detokenize", {"tokens": [-1]}, 400),
    ("POST", "/v1/states", {"name": "", "prompt": "x"}, 400),
    ("POST", "/v1/states/nobody%20has%20this/advance", {"input": "x"}, 404),
    ("GET", "/v1/states/nobody%20has%20this/export", None, 404),
    ("GET", "/v1/cache?limit=x", None, 400),
    ("GET", "/nothing/here", None, 404),
    ("DELETE", "/health", None, 405),
)
_NONSENSE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
)


async def bad_request(caller: Caller) -> None:
    method, path, body, status = caller.random.choice(_BAD)
    await caller.call(method, path, body, status=(status,))
    if caller.random.random() < 0.2:
        await caller.call("POST", TEXT, data=b'{"prompt": "x', status=(400,))


async def nonsense(caller: Caller) -> None:
    """Send bytes that are no HTTP request. The server must answer with a client error, or close the connection."""
    async with connection(caller.url) as (reader, writer):
        writer.write(caller.random.choice(_NONSENSE))
        writer.write_eof()
        try:
            answer = await asyncio.wait_for(reader.read(), _PATIENCE)
        except ConnectionError:
            return
    if answer and not re.match(rb"HTTP/1\.[01] 4", answer):
        raise SurpriseError(f"bytes that are no request: {answer[:200]!r}")


async def cancel(caller: Caller) -> None:
    """Read some lines of a long stream, then close the connection."""
    async with caller.stream(TEXT, {**_ENDLESS, "prompt": caller.text(5)}) as response:
        for _ in range(caller.random.randint(0, 20)):
            await response.content.readline()
        response.close()


async def disconnect(caller: Caller) -> None:
    """Close the connection while the answer is generated, or in the middle of sending the request."""
    request = encode_request("POST", TEXT, {**_ENDLESS, "prompt": caller.text(5)}, caller.session.headers)
    sent = len(request) if caller.random.random() < 0.7 else caller.random.randrange(len(request))
    async with connection(caller.url) as (_, writer):
        writer.write(request[:sent])
        await asyncio.sleep(caller.random.uniform(0, 1))


async def stall(caller: Caller) -> None:
    """Ask for a long stream, and read nothing for a while; then read a little, or leave at once."""
    body = {**_ENDLESS, "prompt": caller.text(5), "stream": True}
    request = encode_request("POST", TEXT, body, caller.session.headers)
    async with connection(caller.url, receive_bytes=SMALL_WINDOW) as (reader, writer):
        writer.write(request)
        await asyncio.sleep(LONGEST_STALL * caller.random.random())
        try:
            for _ in range(caller.random.choice([0, 50])):
                await asyncio.wait_for(reader.read(SMALL_WINDOW), _PATIENCE)
        except ConnectionError:
            return  # the server may disconnect a stalled reader
