"""openai, the official client: chats parsed into pydantic models, streamed or not, and strict tools from models."""

from __future__ import annotations

import openai
from openai import OpenAI
from pydantic import BaseModel

from tools.clients.questions import GREEDY, MODEL, PERSON_QUESTION, WEATHER_QUESTION, Checks, Person


class Weather(BaseModel):
    """The weather in a city."""

    city: str


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="-")


def _parse(url: str) -> Person:
    chat = _client(url).chat.completions
    answer = chat.parse(
        model=MODEL, messages=[{"role": "user", "content": PERSON_QUESTION}], response_format=Person, **GREEDY
    )
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person), answer
    return person


def _stream(url: str) -> Person:
    messages = [{"role": "user", "content": PERSON_QUESTION}]
    with _client(url).chat.completions.stream(
        model=MODEL,
        messages=messages,  # type: ignore[arg-type]
        response_format=Person,
        **GREEDY,
    ) as stream:
        kinds = {event.type for event in stream}
        person = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(person, Person)
    assert {"content.delta", "content.done"} <= kinds, kinds
    return person


def _tool(url: str) -> Weather:
    answer = _client(url).chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": WEATHER_QUESTION}],
        tools=[openai.pydantic_function_tool(Weather, name="weather")],
        **GREEDY,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None, answer
    arguments = calls[0].function.parsed_arguments
    assert isinstance(arguments, Weather), answer
    return arguments


CHECKS: Checks = {
    "`chat.completions.parse`": _parse,
    "`chat.completions.stream` of a pydantic model": _stream,
    "`chat.completions.parse` with `pydantic_function_tool`": _tool,
}
