"""Stop strings do not act inside calls, and a call that was cut does not look like a whole one, in every API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest

from rnn_engine.chat_template import ToolCall, WorldTemplate
from rnn_engine.chat_template.tools import ToolFormat, ToolFormats
from tests.support.fake_engine import FakeEngine
from tests.support.http import Body, Serve

ARGUMENTS = {"city": "Paris} User:", "days": [1, 2]}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
QUESTION = [{"role": "user", "content": "Weather?"}]
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
FORMATS = pytest.mark.parametrize(
    "format_", [ToolFormats.TAGGED.value, ToolFormats.JSON.value, ToolFormats.JSON_PARAMETERS.value]
)


@dataclass(frozen=True, slots=True)
class Read:
    """What a client takes from an answer: its content, the calls with their arguments as JSON, and the reason."""

    content: str
    calls: list[tuple[str, str]]
    reason: str


def read_chat(events: Iterable[Body]) -> Read:
    content, calls, reason = "", list[tuple[str, str]](), ""
    for event in events:
        for choice in event["choices"]:
            said = choice.get("message") or choice["delta"]
            content += said.get("content") or ""
            reason = choice["finish_reason"] or reason
            for call in said.get("tool_calls") or []:
                if "id" in call:
                    calls.append((call["function"]["name"], ""))
                calls[-1] = (calls[-1][0], calls[-1][1] + call["function"]["arguments"])
    return Read(content, calls, reason)


def read_messages(events: Iterable[Body]) -> Read:
    content, calls, reason = "", list[tuple[str, str]](), ""
    for event in events:
        blocks = event["content"] if event["type"] == "message" else [event.get("content_block") or {"type": ""}]
        for block in blocks:
            content += block.get("text") or ""
            if block["type"] == "tool_use":
                calls.append((block["name"], json.dumps(block["input"]) if event["type"] == "message" else ""))
        delta = event.get("delta") or event
        content += delta.get("text") or ""
        reason = delta.get("stop_reason") or reason
        if "partial_json" in delta:
            calls[-1] = (calls[-1][0], calls[-1][1] + delta["partial_json"])
    return Read(content, calls, reason)


def read_responses(events: Iterable[Body]) -> Read:
    [whole] = [
        event.get("response", event)
        for event in events
        if event.get("type", "response.completed") in ("response.completed", "response.incomplete")
    ]
    texts = [part["text"] for item in whole["output"] if item["type"] == "message" for part in item["content"]]
    calls = [item for item in whole["output"] if item["type"] == "function_call"]
    assert all(call["status"] == whole["status"] for call in calls[-1:])
    reason = (whole["incomplete_details"] or {"reason": "completed" if calls else "stop"})["reason"]
    return Read("".join(texts), [(call["name"], call["arguments"]) for call in calls], reason)


def read_ollama(events: Iterable[Body]) -> Read:
    content, calls, reason = "", list[tuple[str, str]](), ""
    for event in events:
        content += event["message"]["content"]
        for call in event["message"].get("tool_calls", []):
            calls.append((call["function"]["name"], json.dumps(call["function"]["arguments"])))
        reason = event.get("done_reason") or reason
    return Read(content, calls, reason)


@dataclass(frozen=True, slots=True)
class Api:
    """A route with tools: its body, how its answers are read, and its words for the ends of answers."""

    path: str
    body: Callable[[Sequence[str], int], Body]
    read: Callable[[Iterable[Body]], Read]
    called: str
    cut: str
    stopped: str


def _ollama(stop: Sequence[str], most: int) -> Body:
    return {"messages": QUESTION, "tools": [FUNCTION], "options": {"stop": stop, "num_predict": most}}


APIS = [
    Api(
        "/v1/chat/completions",
        lambda stop, most: {"messages": QUESTION, "tools": [FUNCTION], "stop": stop, "max_tokens": most},
        read_chat,
        *("tool_calls", "length", "stop"),
    ),
    Api(
        "/v1/messages",
        lambda stop, most: {
            "messages": QUESTION,
            "tools": [{"name": "weather", "input_schema": PARAMETERS}],
            "stop_sequences": stop,
            "max_tokens": most,
        },
        read_messages,
        *("tool_use", "max_tokens", "stop_sequence"),
    ),
    Api(
        "/v1/responses",
        lambda stop, most: {
            "input": QUESTION,
            "tools": [{"type": "function", "name": "weather", "parameters": PARAMETERS}],
            "stop": stop,
            "max_output_tokens": most,
        },
        read_responses,
        *("completed", "max_output_tokens", "stop"),
    ),
    Api("/api/chat", _ollama, read_ollama, *("stop", "length", "stop")),
]


async def ask(serve: Serve, api: Api, format_: ToolFormat, text: str, stop: Sequence[str], most: int) -> list[Read]:
    """Return what is read of the answer `text`, whole and streamed."""
    engine = FakeEngine(reply=lambda _: text, chat_template=WorldTemplate(tool_format=format_))
    client = await serve(engine)
    found = []
    for stream in (False, True):
        async with client.post(api.path, json={**api.body(stop, most), "stream": stream}) as response:
            assert response.status == 200, await response.text()
            lines = (await response.text()).splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith(("data: {", "{"))]
        found.append(api.read([json.loads(each) for each in data]))
    return found


def answer(format_: ToolFormat) -> str:
    return f" Let me look.\n{format_.write([ToolCall('weather', json.dumps(ARGUMENTS))])}"


@FORMATS
@pytest.mark.parametrize("api", APIS, ids=[api.path for api in APIS])
@pytest.mark.parametrize("stop", ["}", '"', "Paris", "User:", '"city"', "[1", "weather", "name", "tool_call", "}}"])
async def test_a_stop_string_does_not_act_inside_a_call(serve: Serve, api: Api, format_: ToolFormat, stop: str) -> None:
    for read in await ask(serve, api, format_, answer(format_), [stop], 200):
        assert [(name, json.loads(arguments)) for name, arguments in read.calls] == [("weather", ARGUMENTS)]
        assert (read.content, read.reason) == ("Let me look.", api.called)


@FORMATS
@pytest.mark.parametrize("api", APIS, ids=[api.path for api in APIS])
async def test_a_stop_string_before_a_call_ends_the_answer(serve: Serve, api: Api, format_: ToolFormat) -> None:
    for read in await ask(serve, api, format_, answer(format_), ["look"], 200):
        assert read == Read("Let me ", [], api.stopped)


@FORMATS
@pytest.mark.parametrize("api", APIS, ids=[api.path for api in APIS])
async def test_a_call_that_is_cut_does_not_look_whole(serve: Serve, api: Api, format_: ToolFormat) -> None:
    text = answer(format_)
    end = text.index("]}") + 1
    for most in range(len(' Let me look.\n{"n'), end + 1, 7):
        for read in await ask(serve, api, format_, text, [], most):
            assert read.reason == api.cut
            assert "<tool" not in read.content
            assert "weather" not in read.content
            assert read.content.startswith("Let me look.")
            for _, arguments in read.calls:
                with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
                    json.loads(arguments)


@FORMATS
@pytest.mark.parametrize("api", APIS, ids=[api.path for api in APIS])
async def test_the_calls_before_one_that_is_cut_are_whole(serve: Serve, api: Api, format_: ToolFormat) -> None:
    if not format_.closing:
        return
    call = format_.write([ToolCall("weather", "{}")])
    for read in await ask(serve, api, format_, f"{call}\n{call}", [], len(call) + 30):
        assert read == Read("", [("weather", "{}")], api.cut)
