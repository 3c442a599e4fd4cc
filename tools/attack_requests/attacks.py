"""The hostile requests that are sent to a server. Each has a body of a few kilobytes to 64 MB."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support import pth

MEGABYTE = 1 << 20
_AMBIGUOUS = "root ::= (x x x x x x)*\nx ::= [a-z]* | [a-z ]* | x x\n"
CHAT, COMPLETIONS, STATE = "/v1/chat/completions", "/v1/completions", "/v1/states/attack"
CONVERSATIONS = "/v1/conversations"


@dataclass(frozen=True, slots=True)
class Attack:
    """A hostile request.

    If `stalled` is above 0, that number of copies is sent in parallel, each without its last byte.
    """

    name: str
    body: Callable[[], bytes]
    path: str
    method: str = "POST"
    stalled: int = 0
    runs: bool = False  # it is not refused at once, and must not slow down other clients while it runs


def _json(path: str, name: str, body: Mapping[str, object], *, runs: bool = False) -> Attack:
    return Attack(name, lambda: json.dumps(body).encode(), path, runs=runs)


def _chat(name: str, content: str, count: int = 1, **fields: object) -> Attack:
    return _json(CHAT, name, {"messages": [{"role": "user", "content": content}] * count, "max_tokens": 1, **fields})


def _call(arguments: str) -> Mapping[str, object]:
    return {"id": "call", "function": {"name": "f", "arguments": arguments}}


def _many(path: str, name: str, before: bytes, item: bytes, count: int, after: bytes = b"}") -> Attack:
    """Return an attack whose body holds a JSON list of `count` copies of `item`, between `before` and `after`."""
    return Attack(name, lambda: before + b"[" + (item + b",") * (count - 1) + item + b"]" + after, path)


def _bomb(tensors: int, storage_megabytes: int) -> bytes:
    """Return a deflated .pth file that is far larger when unpacked: its tensors all share one storage of zeros."""
    content = io.BytesIO()
    count = storage_megabytes * MEGABYTE // 4
    entries = {
        f"blocks.{layer}.att.time_state": pth.tensor(pth.storage("0", "float32", count), 0, (count,), (1,))
        for layer in range(tensors)
    }
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", pth.program(pth.dict_of(entries)))
        with archive.open("archive/data/0", "w", force_zip64=True) as entry:
            for _ in range(storage_megabytes):
                entry.write(bytes(MEGABYTE))
    return content.getvalue()


_THOUGHTS = b'{"items":[{"type":"reasoning","content":'
_ASKED = b'{"max_output_tokens":1,"input":[{"role":"user","content":"a"},{"type":"reasoning","content":'
_LONG_TOOL = {"type": "function", "name": "a", "description": "b" * 4_000_000}
_SHORT = {"input": "a", "max_output_tokens": 1}
_LONG = "b" * 60_000_000
_TOOL = b'{"type":"function","name":"a"}'

ATTACKS = (
    _chat("a template of 20,000 contents", "a" * 50_000, template={"record": "{content}" * 20_000}),
    _chat("2,000 messages of a user with a long name", "a", 2000, names={"user": "x" * 500_000}),
    _chat("2,000 messages with a long separator", "a", 2000, template={"sep": "x" * 500_000}),
    _chat("a prefix of 100,000 long names", "a", names={"user": "x" * 50_000}, template={"prefix": "{user}" * 100_000}),
    _chat("2,000 empty messages of 20,000 contents", "", 2000, template={"record": "{content}" * 20_000}),
    _chat("10 MB of text", "hello world " * 900_000),
    _many(CHAT, "8 million messages that are none", b'{"messages":', b"{}", 8_000_000),
    _json(COMPLETIONS, "1,000 prompts, 128 answers each", {"prompt": ["a b"] * 1000, "n": 128, "max_tokens": 1}),
    _json(COMPLETIONS, "4,000 prompts, 128 answers each", {"prompt": ["a b"] * 4000, "n": 128, "max_tokens": 1}),
    _json(COMPLETIONS, "a stop string of 12 MB", {"prompt": "a", "stop": "x" * 12_000_000, "max_tokens": 1}),
    _json(
        COMPLETIONS,
        "100,000 scored tokens with 20 alternatives",
        {"prompt": [5] * 100_000, "echo": True, "logprobs": 20, "max_tokens": 0},
    ),
    _json(
        COMPLETIONS,
        "a state of texts of unequal length",
        {"prompt": "a", "state": {"data": ["1" * 1_000_000, *["1"] * 1000], "shape": [1, 1, 1, 1]}},
    ),
    _many(COMPLETIONS, "20 million empty objects", b'{"prompt":', b"{}", 20_000_000),
    _json("/v1/embeddings", "200,001 layers", {"input": "a", "layer": [0] * 200_001, "dimensions": 1}),
    _json("/v1/choices", "2,048 choices after 250,000 tokens", {"input": [5] * 250_000, "choices": [[5]] * 2048}),
    Attack("60 MB to tokenize", lambda: b'{"content": "' + b"hello world " * 5_000_000 + b'"}', "/tokenize"),
    _json("/tokenize", "4 MB of mixed white space to tokenize", {"content": " \n\t \r\n  \t" * 450_000}),
    _json(
        "/tokenize", "4 MB of punctuation to tokenize, with pieces", {"content": "<|.!>" * 800_000, "with_pieces": True}
    ),
    _json(
        COMPLETIONS,
        "a bias for a text of 4 MB",
        {"prompt": "a", "logit_bias": {"a|" * 1_900_000: 1}, "max_tokens": 1},
        runs=True,
    ),
    _chat("1 million blank lines", "a\n\n\n" * 1_000_000),
    _json(
        CHAT,
        "a call with 1 million lists as its arguments",
        {"messages": [{"role": "assistant", "tool_calls": [_call("[" + "[]," * 1_000_000 + "[]]")]}], "max_tokens": 1},
    ),
    _many("/detokenize", "5 million texts to detokenize", b'{"tokens":', b'"x"', 5_000_000),
    _many("/detokenize", "20 million tokens to detokenize", b'{"tokens":', b"99", 20_000_000),
    _json("/v1/responses", "metadata of 60 MB", {"input": "a", "metadata": {"a": _LONG}}),
    _json("/v1/responses", "60 MB of instructions", {"input": "a", "instructions": _LONG}),
    _json("/v1/responses", "a format of 60 MB", {"input": "a", "text": {"format": {"type": "text", "a": _LONG}}}),
    _many("/v1/responses", "200,000 tools", b'{"input":"a","tool_choice":"none","tools":', _TOOL, 200_000),
    _json(
        COMPLETIONS,
        "an ambiguous grammar",
        {"prompt": "Once upon a time", "max_tokens": 300, "guided_grammar": _AMBIGUOUS},
        runs=True,
    ),
    _json(
        COMPLETIONS,
        "a prompt of 20,000 tokens",
        {"prompt": list(range(1, 201)) * 100, "echo": True, "max_tokens": 1},
        runs=True,
    ),
    Attack("40 uploads of 62 MB that stall", lambda: bytes(62 * MEGABYTE), STATE, "PUT", stalled=40),
    Attack("12 exchanges of keys of 60 MB that stall", lambda: bytes(60 * MEGABYTE), "/api/auth/exchange", stalled=12),
    Attack("an upload of 3 MB that holds 3 GB", lambda: _bomb(2, 3000), STATE, "PUT"),
    Attack("500 tensors on one storage", lambda: _bomb(500, 64), STATE, "PUT"),
)

KEPT = (
    _many(CONVERSATIONS, "an item of 750,000 empty parts", _THOUGHTS, b'{"text":""}', 750_000, b"}]}"),
    _many(CONVERSATIONS, "8,000 empty items", b'{"items":', b'{"role":"user","content":""}', 8000),
    _json(CONVERSATIONS, "an item of 50 MB", {"items": [{"role": "user", "content": "b" * 50_000_000}]}),
    _json("/v1/responses", "a tool of 4 MB", {**_SHORT, "tool_choice": "none", "tools": [_LONG_TOOL]}),
    _many("/v1/responses", "20,000 empty parts", _ASKED, b'{"text":""}', 20_000, b"}]}"),
)
"""Requests that the server answers and of which it keeps much."""
