"""Hostile requests of up to 64 MB, which once exhausted a server's memory or blocked others, are refused at once."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from rnn_engine_server.core.call import BUDGET
from tests.support.fake_engine import FakeEngine
from tests.support.http import Serve

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = "b" * 60_000_000
TOOL = b'{"type":"function","name":"a"}'


@dataclass(frozen=True, slots=True)
class Attack:
    """A hostile request."""

    name: str
    body: Callable[[], bytes]
    path: str


def simple(path: str, name: str, body: Mapping[str, object]) -> Attack:
    return Attack(name, lambda: json.dumps(body).encode(), path)


def chat(name: str, content: str, count: int = 1, **fields: object) -> Attack:
    return simple(CHAT, name, {"messages": [{"role": "user", "content": content}] * count, "max_tokens": 1, **fields})


def call(arguments: str) -> Mapping[str, object]:
    return {"id": "call", "function": {"name": "f", "arguments": arguments}}


def many(path: str, name: str, before: bytes, item: bytes, count: int) -> Attack:
    """Return an attack whose body holds a JSON list of `count` copies of `item`, after `before`."""
    return Attack(name, lambda: before + b"[" + (item + b",") * (count - 1) + item + b"]}", path)


ATTACKS = (
    chat("a template of 20,000 contents", "a" * 50_000, template={"record": "{content}" * 20_000}),
    chat("2,000 messages of a user with a long name", "a", 2000, names={"user": "x" * 500_000}),
    chat("2,000 messages with a long separator", "a", 2000, template={"sep": "x" * 500_000}),
    chat("a prefix of 100,000 long names", "a", names={"user": "x" * 50_000}, template={"prefix": "{user}" * 100_000}),
    chat("2,000 empty messages of 20,000 contents", "", 2000, template={"record": "{content}" * 20_000}),
    chat("10 MB of text", "hello world " * 900_000),
    many(CHAT, "8 million messages that are none", b'{"messages":', b"{}", 8_000_000),
    simple(COMPLETIONS, "1,000 prompts, 128 answers each", {"prompt": ["a b"] * 1000, "n": 128, "max_tokens": 1}),
    simple(COMPLETIONS, "4,000 prompts, 128 answers each", {"prompt": ["a b"] * 4000, "n": 128, "max_tokens": 1}),
    simple(COMPLETIONS, "a stop string of 12 MB", {"prompt": "a", "stop": "x" * 12_000_000, "max_tokens": 1}),
    simple(
        COMPLETIONS,
        "100,000 scored tokens with 20 alternatives",
        {"prompt": [5] * 100_000, "echo": True, "logprobs": 20, "max_tokens": 0},
    ),
    simple(
        COMPLETIONS,
        "a state of texts of unequal length",
        {"prompt": "a", "state": {"data": ["1" * 1_000_000, *["1"] * 1000], "shape": [1, 1, 1, 1]}},
    ),
    many(COMPLETIONS, "20 million empty objects", b'{"prompt":', b"{}", 20_000_000),
    simple("/v1/embeddings", "200,001 layers", {"input": "a", "layer": [0] * 200_001, "dimensions": 1}),
    simple("/v1/choices", "2,048 choices after 250,000 tokens", {"input": [5] * 250_000, "choices": [[5]] * 2048}),
    Attack("60 MB to tokenize", lambda: b'{"content": "' + b"hello world " * 5_000_000 + b'"}', "/tokenize"),
    simple("/tokenize", "4 MB of mixed white space to tokenize", {"content": " \n\t \r\n  \t" * 450_000}),
    simple(
        "/tokenize", "4 MB of punctuation to tokenize, with pieces", {"content": "<|.!>" * 800_000, "with_pieces": True}
    ),
    chat("1 million blank lines", "a\n\n\n" * 1_000_000),
    simple(
        CHAT,
        "a call with 1 million lists as its arguments",
        {"messages": [{"role": "assistant", "tool_calls": [call("[" + "[]," * 1_000_000 + "[]]")]}], "max_tokens": 1},
    ),
    many("/detokenize", "5 million texts to detokenize", b'{"tokens":', b'"x"', 5_000_000),
    many("/detokenize", "20 million tokens to detokenize", b'{"tokens":', b"99", 20_000_000),
    simple("/v1/responses", "metadata of 60 MB", {"input": "a", "metadata": {"a": LONG}}),
    simple("/v1/responses", "60 MB of instructions", {"input": "a", "instructions": LONG}),
    simple("/v1/responses", "a format of 60 MB", {"input": "a", "text": {"format": {"type": "text", "a": LONG}}}),
    many("/v1/responses", "200,000 tools", b'{"input":"a","tool_choice":"none","tools":', TOOL, 200_000),
    Attack("a key of 60 MB to exchange", lambda: bytes(60 << 20), "/api/auth/exchange"),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: one.name)
async def test_attacks_are_refused(serve: Serve, attack: Attack) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    response = await client.post(attack.path, data=io.BytesIO(attack.body()))
    assert response.status in (400, 413), await response.text()
    assert engine.requests == []
    assert client.app[BUDGET].held < 1 << 20
