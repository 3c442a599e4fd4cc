"""The operations of a soak test's clients: they ask, change named states, disconnect, stall, and send invalid bytes."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tools.kill.ledger import Ledger, StateWriter
from tools.live_server.asking import SMALL_WINDOW, ask, connection, encode_request
from tools.live_server.caller import CHAT, OK, TEXT, Body, Caller, KnownAnswers, SurpriseError, expect, expect_that

Run: TypeAlias = Callable[[Caller], Awaitable[None]]

_TURNS = 8  # of a conversation, which then begins anew
_NUM_CONVERSATIONS = 12
_PREFIXES = 8
_PREFIX_WORDS = 60
_GREEDY_PROMPTS = 8
_WRITERS = 3
LONGEST_STALL = 20.0  # seconds, for which a client reads nothing
_PATIENCE = 30.0  # seconds in which the server has to answer nonsense, or to close


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of operation that clients run. `weight` is its frequency relative to the other kinds."""

    name: str
    weight: float
    run: Run


def make_operations(ledger: Ledger) -> tuple[Operation, ...]:
    """Return all kinds of operations. Some remember what they left on the server, so use them with one server only.

    The named states that they keep have to agree with `ledger` in the end.
    """
    conversations, named, greedy = Conversations(), NamedStates(ledger), KnownAnswers(_GREEDY_PROMPTS)
    return (
        Operation("chat", 16, chat),
        Operation("chat, streamed", 16, chat_stream),
        Operation("conversation that goes on", 12, conversations.turn),
        Operation("change of a named state", 10, named.write),
        Operation("known answer", 8, greedy.ask),
        Operation("long common prefix", 8, common_prefix),
        Operation("several prompts and answers", 3, many),
        Operation("choices", 4, choices),
        Operation("embeddings", 4, embeddings),
        Operation("tokens", 4, tokens),
        Operation("look at the server", 4, look),
        Operation("drop the cache", 0.05, drop_cache),
        Operation("state left to its lease", 1, leave_behind),
        Operation("long history", 1, long_history),
        Operation("many embeddings", 1, many_embeddings),
        Operation("form that inflates", 0.5, inflating_form),
        Operation("bad request", 6, bad_request),
        Operation("bytes that are no request", 1, nonsense),
        Operation("stream, then cancel", 12, cancel),
        Operation("stalled reader", 1, stall),
    )


async def chat(caller: Caller) -> None:
    answer = await caller.call("POST", CHAT, {"messages": [_user(caller)], "max_tokens": caller.random.randint(1, 60)})
    expect_that(len(answer["choices"]) == 1, f"not one choice: {answer}")


async def chat_stream(caller: Caller) -> None:
    most = caller.random.randint(1, 60)
    body = {
        "messages": [_user(caller)],
        "max_tokens": most,
        "temperature": caller.random.choice([0, 0.7, 1, 1.5]),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = await ask(caller.session, caller.url + CHAT, body)
    expect_that(answer.error is None, f"{CHAT}: {answer.status}: {answer.error}")
    expect_that(answer.tokens <= most, f"too many tokens: {answer.usage}")


@dataclass
class Conversations:
    """Operations that continue chats. Each request sends the chat's whole history."""

    histories: list[list[dict[str, str]]] = field(default_factory=lambda: [[] for _ in range(_NUM_CONVERSATIONS)])

    async def turn(self, caller: Caller) -> None:
        """Continue a conversation that no other operation is using. If all are in use, send a single chat request."""
        if not self.histories:
            return await chat(caller)
        history = self.histories.pop(caller.random.randrange(len(self.histories)))
        if len(history) >= 2 * _TURNS:
            history = []
        try:
            messages = [*history, _user(caller)]
            answer = await caller.call("POST", CHAT, {"messages": messages, "max_tokens": 40})
            history = [*messages, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}]
        finally:
            self.histories.append(history)
        return None


async def common_prefix(caller: Caller) -> None:
    """Send one of a few long prompts followed by words of its own, so that prompts share prefixes in the cache."""
    place = caller.random.randrange(_PREFIXES)
    prefix = " ".join(f"{place * number % 97}" for number in range(_PREFIX_WORDS))
    await caller.call("POST", TEXT, {"prompt": f"{prefix} {caller.text(3)}", "max_tokens": 8})


async def many(caller: Caller) -> None:
    body = {"prompt": [caller.text(4), caller.text(9)], "n": 2, "max_tokens": 12, "logprobs": 2, "echo": True}
    answer = await caller.call("POST", TEXT, body)
    expect_that(len(answer["choices"]) == 4, f"not four choices: {answer}")


async def choices(caller: Caller) -> None:
    wanted = [f" {caller.text(1)}" for _ in range(caller.random.randint(2, 8))]
    route = caller.random.choice(["/v1/choices", "/api/oai/chooses"])
    answer = await caller.call("POST", route, {"input": caller.text(12), "choices": wanted})
    ranks = sorted(entry["index"] for entry in answer["data"])
    expect_that(ranks == list(range(len(wanted))), f"not every choice once: {answer}")


async def embeddings(caller: Caller) -> None:
    body = {"input": [caller.text(6), caller.text(6)], "encoding_format": "base64"}
    route, count = caller.random.choice([("/v1/embeddings", 2), ("/api/oai/states", 1)])  # ai00 joins the texts
    expect_that(len((await caller.call("POST", route, body))["data"]) == count, f"not {count} vector(s)")


async def tokens(caller: Caller) -> None:
    text = caller.text(20)
    found = await caller.call("POST", "/tokenize", {"content": text})
    back = await caller.call("POST", "/detokenize", {"tokens": found["tokens"]})
    expect_that(back["content"] == text, f"{text!r} came back as {back}")


async def look(caller: Caller) -> None:
    await caller.call("GET", caller.random.choice(["/health", "/v1/models", "/v1/cache?limit=20", "/v1/states"]))


async def drop_cache(caller: Caller) -> None:
    await caller.call("DELETE", "/v1/cache")


def _user(caller: Caller) -> dict[str, str]:
    return {"role": "user", "content": caller.text(caller.random.randint(1, 30))}


@dataclass
class NamedStates:
    """Operations that change persistent named states, and note in a ledger what the server has acknowledged."""

    ledger: Ledger
    free: list[int] = field(default_factory=lambda: list(range(_WRITERS)))

    async def write(self, caller: Caller) -> None:
        """Make a random change, as a writer that no other operation is. If there is none, only list the states."""
        if not self.free:
            await caller.call("GET", "/v1/states")
            return
        number = self.free.pop()
        try:
            await StateWriter(caller, self.ledger, number).write()
        finally:
            self.free.append(number)


async def leave_behind(caller: Caller) -> None:
    """Create a named state and do not delete it; it expires after a minute."""
    body = {"name": f"soak left {caller.number}", "prompt": caller.text(4), "ttl": 60}
    await caller.call("POST", "/v1/states", body)


async def long_history(caller: Caller) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": f"Line {number}."} for number in range(501)]
    await caller.call("POST", CHAT, {"messages": messages, "max_tokens": 1})


async def many_embeddings(caller: Caller) -> None:
    await caller.call("POST", "/v1/embeddings", {"input": [f"Line {number}." for number in range(200)]})


async def inflating_form(caller: Caller) -> None:
    """Upload a form with millions of lines before its first boundary."""
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": "gzip"}
    data = gzip.compress(b"\n" * 5_000_000)
    async with caller.session.post(f"{caller.url}/v1/files", data=data, headers=headers) as response:
        await expect(response, (400, 413))


_ENDLESS = {"max_tokens": 100_000, "logit_bias": {"0": -100}, "temperature": 1}  # token 0 would end the text

_BAD: tuple[tuple[str, str, Body | None, int], ...] = (
    ("POST", CHAT, {"messages": []}, 400),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "state": "nobody has this"}, 404),
    ("POST", TEXT, {"prompt": "x", "n": 100_000}, 400),
    ("POST", TEXT, {"prompt": [10**9]}, 400),
    ("POST", "/v1/embeddings", {"input": "x", "layer": 10**6}, 400),
    ("GET", "/v1/states/nobody%20has%20this/export", None, 404),
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
    """Send bytes that are not a request. The server must answer with a client error, or close the connection."""
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
    """Read some events of a long stream, then close the connection."""
    body = {**_ENDLESS, "prompt": caller.text(5), "stream": True}
    async with caller.session.post(caller.url + TEXT, json=body) as response:
        await expect(response, OK)
        for _ in range(caller.random.randint(0, 20)):
            await response.content.readline()
        response.close()


async def stall(caller: Caller) -> None:
    """Request a long stream and read nothing for a while. Then read a little, or disconnect at once."""
    body = {**_ENDLESS, "prompt": caller.text(5), "stream": True}
    request = encode_request("POST", TEXT, body, caller.session.headers)
    async with connection(caller.url, receive_bytes=SMALL_WINDOW) as (reader, writer):
        writer.write(request)
        await asyncio.sleep(LONGEST_STALL * caller.random.random())
        try:
            for _ in range(caller.random.choice([0, 50])):
                await asyncio.wait_for(reader.read(SMALL_WINDOW), _PATIENCE)
        except ConnectionError:
            return  # the server may drop a reader that stalls
