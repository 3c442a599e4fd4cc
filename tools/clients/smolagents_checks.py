"""Checks of smolagents against the server: `OpenAIModel` with streams, a schema and tools."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from smolagents import OpenAIModel, tool

from tools.clients.questions import (
    GREEDY,
    MODEL,
    Checks,
    answers_france,
    calls_weather,
    gives_person,
    person_format,
    weather,
)


def _ask(url: str, question: str, *, stream: bool = False, **fields: Any) -> Any:  # noqa: ANN401
    model = OpenAIModel(MODEL, api_base=url, api_key="-", max_tokens=80, **GREEDY)
    messages = [{"role": "user", "content": [{"type": "text", "text": question}]}]
    return (model.generate_stream if stream else model.generate)(messages, **fields)


def _text(url: str, question: str, **fields: Any) -> object:  # noqa: ANN401
    return _ask(url, question, **fields).content


def _stream(url: str, question: str) -> str:
    return "".join(part.content or "" for part in _ask(url, question, stream=True))


def _tool(url: str, question: str) -> object:
    (call,) = _ask(url, question, tools_to_call_from=[tool(weather)]).tool_calls
    arguments = call.function.arguments
    return json.loads(arguments) if isinstance(arguments, str) else arguments


CHECKS: Checks = {
    "`generate`": answers_france(_text),
    "`generate_stream`": answers_france(_stream),
    "`response_format`": gives_person(partial(_text, response_format=person_format())),
    "`tools_to_call_from`": calls_weather(_tool),
}
