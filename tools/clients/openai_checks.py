"""Checks of openai, the official client, against the server: chats parsed into pydantic models, and strict tools.

Chats are checked streamed and whole. The tools are made from pydantic models.
"""

from __future__ import annotations

from typing import Any

import openai
from openai import OpenAI
from pydantic import BaseModel

from tools.clients.questions import GREEDY, MODEL, Checks, Person, calls_weather, gives_person


class Weather(BaseModel):
    """The weather in a city."""

    city: str


_STRICT = [openai.pydantic_function_tool(Weather, name="weather")]


def _parse(url: str, question: str, **fields: Any) -> Any:  # noqa: ANN401
    chat = OpenAI(base_url=url, api_key="-").chat.completions
    messages: Any = [{"role": "user", "content": question}]
    return chat.parse(model=MODEL, messages=messages, **GREEDY, **fields).choices[0].message


def _stream(url: str, question: str) -> object:
    messages: Any = [{"role": "user", "content": question}]
    chat = OpenAI(base_url=url, api_key="-").chat.completions
    with chat.stream(model=MODEL, messages=messages, response_format=Person, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        assert {"content.delta", "content.done"} <= kinds, kinds
        return stream.get_final_completion().choices[0].message.parsed


def _tool(url: str, question: str) -> Weather:
    [call] = _parse(url, question, tools=_STRICT).tool_calls
    arguments = call.function.parsed_arguments
    assert isinstance(arguments, Weather), call
    return arguments


CHECKS: Checks = {
    "`chat.completions.parse`": gives_person(lambda *asked: _parse(*asked, response_format=Person).parsed),
    "`chat.completions.stream` of a pydantic model": gives_person(_stream),
    "`chat.completions.parse` with `pydantic_function_tool`": calls_weather(_tool),
}
