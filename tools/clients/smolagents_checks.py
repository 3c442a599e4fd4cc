"""smolagents: `OpenAIModel` with streams, a schema and tools."""

from __future__ import annotations

import json

from smolagents import OpenAIModel, tool

from tools.clients.questions import (
    GREEDY,
    MODEL,
    PERSON_QUESTION,
    WEATHER_QUESTION,
    Checks,
    Person,
    person_format,
    weather,
)


def _model(url: str) -> OpenAIModel:
    return OpenAIModel(MODEL, api_base=url, api_key="-", max_tokens=80, **GREEDY)


def _said(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def _text(url: str) -> str:
    answer = str(_model(url).generate(_said("What is the capital of France?")).content)
    assert "Paris" in answer, answer
    return answer


def _stream(url: str) -> str:
    parts = _model(url).generate_stream(_said("What is the capital of France?"))
    answer = "".join(part.content or "" for part in parts)
    assert "Paris" in answer, answer
    return answer


def _schema(url: str) -> Person:
    answer = _model(url).generate(_said(PERSON_QUESTION), response_format=person_format())
    return Person.model_validate_json(str(answer.content))


def _tool(url: str) -> object:
    (call,) = _model(url).generate(_said(WEATHER_QUESTION), tools_to_call_from=[tool(weather)]).tool_calls
    arguments = call.function.arguments
    return json.loads(arguments) if isinstance(arguments, str) else arguments


CHECKS: Checks = {
    "`generate`": _text,
    "`generate_stream`": _stream,
    "`response_format`": _schema,
    "`tools_to_call_from`": _tool,
}
