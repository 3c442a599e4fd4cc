"""Checks of pydantic-ai against the server: agents whose answer is a pydantic model, and the loop of tool calls."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tools.clients.questions import GREEDY, MODEL, Checks, Person, answers_weather, gives_person, weather


def _agent(url: str, responses: bool = False, **fields: Any) -> Agent:  # noqa: ANN401
    provider = OpenAIProvider(base_url=url, api_key="-")
    if responses:
        return Agent(OpenAIResponsesModel(MODEL, provider=provider, settings=ModelSettings(temperature=0)), **fields)
    return Agent(OpenAIChatModel(MODEL, provider=provider, settings=ModelSettings(**GREEDY)), **fields)


def _loop(url: str, question: str, responses: bool = False) -> object:
    return _agent(url, responses, tools=[weather]).run_sync(question).output


def _stream(url: str, question: str, responses: bool = False) -> str:
    async def run() -> str:
        async with _agent(url, responses, tools=[weather]).run_stream(question) as result:
            return [str(text) async for text in result.stream_text()][-1]

    return asyncio.run(run())


def _output(url: str, question: str, output_type: object = Person) -> object:
    return _agent(url, output_type=output_type, retries=0).run_sync(question).output


CHECKS: Checks = {
    "tool loop": answers_weather(_loop),
    "tool loop, responses": answers_weather(partial(_loop, responses=True)),
    "tool loop as a stream": answers_weather(_stream),
    "tool loop as a stream, responses": answers_weather(partial(_stream, responses=True)),
    "`output_type` as a tool": gives_person(_output),
    "`output_type=NativeOutput`": gives_person(partial(_output, output_type=NativeOutput(Person))),
}
